/* uses: pair_shape advance */
/* loop: each_pair holds_s16 */
typedef int16_t compare_s16_operand;
typedef uint8_t compare_s16_result;

static inline uint8_t holds_s16(const anynpu_compare_s16_params *p, int32_t a, int32_t b)
{
    return (uint8_t)(a < b ? p->below : a > b ? p->above : p->same);
}
