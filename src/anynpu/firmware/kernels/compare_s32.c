/* uses: pair_shape advance */
/* loop: each_pair holds_s32 */
typedef int32_t compare_s32_operand;
typedef uint8_t compare_s32_result;

static inline uint8_t holds_s32(const anynpu_compare_s32_params *p, int32_t a, int32_t b)
{
    return (uint8_t)(a < b ? p->below : a > b ? p->above : p->same);
}
