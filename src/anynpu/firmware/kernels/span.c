/* The part of a window of `size` at `origin` that lies inside 0 to `limit`. */
typedef struct {
    int32_t first;
    int32_t end;
} span;

static inline span inside(int32_t origin, int32_t size, int32_t limit)
{
    const span s = {origin < 0 ? 0 : origin, origin + size > limit ? limit : origin + size};
    return s;
}
