/* From reset to main: vectors, FPU, memory. */
#include <stdint.h>

#define CPACR (*(volatile uint32_t *)0xE000ED88u)

extern uint32_t data_source[];
extern uint32_t data_start[];
extern uint32_t data_end[];
extern uint32_t bss_start[];
extern uint32_t bss_end[];
extern uint32_t stack_top[];

int main(void);
void anynpu_board_exit(int status);
void SysTick_Handler(void);
void Reset_Handler(void);

__attribute__((noreturn)) static void fault(void)
{
    anynpu_board_exit(70);
    for (;;) {
    }
}

/* Plain loops: memcpy may use registers of a unit that is not switched on yet. */
__attribute__((optimize("no-tree-loop-distribute-patterns"))) static void prepare_memory(void)
{
    const uint32_t *from = data_source;
    for (uint32_t *to = data_start; (uintptr_t)to < (uintptr_t)data_end; ++to) {
        *to = *from++;
    }
    for (uint32_t *to = bss_start; (uintptr_t)to < (uintptr_t)bss_end; ++to) {
        *to = 0;
    }
}

void Reset_Handler(void)
{
    CPACR |= 0xFu << 20; /* FPU and Helium. */
    __asm__ volatile("dsb\n\tisb" ::: "memory");
    prepare_memory();
    anynpu_board_exit(main());
    for (;;) {
    }
}

typedef union {
    void (*handler)(void);
    uint32_t *stack;
} vector;

__attribute__((section(".vectors"), used)) static const vector vectors[16] = {
    {.stack = stack_top}, {.handler = Reset_Handler}, {.handler = fault}, {.handler = fault},
    {.handler = fault},   {.handler = fault},         {.handler = fault}, {.handler = fault},
    {.handler = 0},       {.handler = 0},             {.handler = 0},     {.handler = fault},
    {.handler = fault},   {.handler = 0},             {.handler = fault}, {.handler = SysTick_Handler},
};
