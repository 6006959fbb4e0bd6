int DbgConsole_Getchar(void);
int DbgConsole_Putchar(int c);
#define GETCHAR DbgConsole_Getchar
#define PUTCHAR DbgConsole_Putchar
