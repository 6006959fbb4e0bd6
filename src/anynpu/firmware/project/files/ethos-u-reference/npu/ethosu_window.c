/* Windows that slide over an input, pooling, and the resizing of the U85. */
#include "ethosu_reference.h"

#include <string.h>

enum { UPSCALE_NEAREST = 1, UPSCALE_ZEROS = 2 };
enum { BILINEAR, REPLICATE, NEAREST };
enum { POOL_MAX, POOL_AVERAGE, POOL_REDUCE_SUM, POOL_SUM, POOL_NONE, POOL_MIN, POOL_ARGMAX_X, POOL_ARGMAX_Y };

static const char OTHER_DEPTH[] = "it stores another number of channels than its input gives";

ref_shape ref_ofm_shape(ref_machine *m)
{
    const ref_shape shape = {(int32_t)ref_brief(m, OFM_HEIGHT_M1) + 1, (int32_t)ref_brief(m, OFM_WIDTH_M1) + 1,
                             (int32_t)ref_brief(m, OFM_DEPTH_M1) + 1};
    return shape;
}

int ref_window_of(ref_machine *m, ref_shape ofm, ref_window *w)
{
    const uint32_t stride = ref_brief(m, KERNEL_STRIDE);
    w->dilation_y = 1 + (int32_t)(stride >> 4 & 1u);
    w->dilation_x = 1 + (int32_t)(stride >> 3 & 1u);
    w->height = (int32_t)ref_brief(m, KERNEL_HEIGHT_M1) / w->dilation_y + 1;
    w->width = (int32_t)ref_brief(m, KERNEL_WIDTH_M1) / w->dilation_x + 1;
    w->stride_y = 1 + (int32_t)(stride >> 1 & 1u) + 2 * (int32_t)(stride >> 9 & 1u);
    w->stride_x = 1 + (int32_t)(stride & 1u) + 2 * (int32_t)(stride >> 6 & 1u);
    w->top = (int32_t)ref_brief(m, IFM_PAD_TOP);
    w->left = (int32_t)ref_brief(m, IFM_PAD_LEFT);
    w->bottom = (int32_t)ref_brief(m, IFM_PAD_BOTTOM);
    w->right = (int32_t)ref_brief(m, IFM_PAD_RIGHT);
    w->upscale = (int)ref_brief(m, IFM_UPSCALE);
    w->part_kernel = (stride >> 2 & 1u) != 0u;
    w->reach_y = (int64_t)(ofm.height - 1) * w->stride_y + (int64_t)(w->height - 1) * w->dilation_y + 1;
    w->reach_x = (int64_t)(ofm.width - 1) * w->stride_x + (int64_t)(w->width - 1) * w->dilation_x + 1;
    return m->fault == NULL;
}

static const ref_chain *chained(ref_machine *m, int region_register)
{
    const uint32_t number = ref_brief(m, region_register);
    if (number >= REF_CHAINS || !m->chains[number].filled) {
        (void)ref_fail(m, "nothing was chained to it");
        return NULL;
    }
    return &m->chains[number];
}

int ref_window_source(ref_machine *m, const ref_window *w, int32_t depth, ref_source *source)
{
    int64_t height = w->reach_y - w->top - w->bottom;
    int64_t width = w->reach_x - w->left - w->right;
    if (w->upscale != 0) {
        height = (height + 1) / 2;
        width = (width + 1) / 2;
    }
    if (m->product == REF_U85 && ref_brief(m, IFM_PRECISION) >> 14 == 2u) {
        memset(source, 0, sizeof *source);
        source->chain = chained(m, IFM_REGION);
        if (source->chain == NULL) {
            return 0;
        }
        const uint32_t zero = ref_is_written(m, IFM_ZERO_POINT) ? ref_brief(m, IFM_ZERO_POINT) : 0u;
        source->zero_point = (ref_brief(m, IFM_PRECISION) & 1u) != 0u ? ref_signed(zero, 16) : (int64_t)zero;
        source->shape = source->chain->shape;
        return source->shape.depth == depth ? 1 : ref_fail(m, "what was chained has other channels");
    }
    if (height < 1 || width < 1 || height > INT32_MAX / 2 || width > INT32_MAX / 2) {
        return ref_fail(m, "the padding is larger than the kernel reaches");
    }
    const ref_shape shape = {(int32_t)height, (int32_t)width, depth};
    return ref_source_of(m, 0, shape, source);
}

int32_t ref_place_of(int64_t padded, int32_t before, int32_t size, int upscale)
{
    const int64_t inside = padded - before;
    const int64_t whole = upscale == UPSCALE_NEAREST || upscale == UPSCALE_ZEROS ? 2 * (int64_t)size : size;
    if (inside < 0 || inside >= whole) {
        return -1;
    }
    if (upscale == UPSCALE_ZEROS && (inside & 1) != 0) {
        return -2;
    }
    return (int32_t)(whole == size ? inside : inside / 2);
}

int ref_too_much(ref_machine *m, ref_shape ofm, const ref_window *w, int32_t depth)
{
    const double kernel = (double)w->height * (double)w->width * (double)depth;
    const double work = (double)ofm.height * (double)ofm.width * (double)ofm.depth * kernel;
    if (work > (double)ETHOSU_REFERENCE_WORK) {
        (void)ref_fail(m, "it is larger than any that an NPU executes");
    }
    return m->fault != NULL;
}

/* One window of one channel: the sum, how many elements are not padding, the extreme and where it is. */
typedef struct {
    int64_t sum;
    int64_t inside;
    int64_t best;
    int64_t where;
} seen;

static void look(const ref_source *s, const ref_window *w, int32_t y, int32_t x, int32_t c, int sign, seen *found)
{
    int64_t element = 0;
    found->best = INT64_MIN;
    for (int32_t row = 0; row < w->height; ++row) {
        const int64_t at_y = (int64_t)y * w->stride_y + (int64_t)row * w->dilation_y;
        const int32_t from_y = ref_place_of(at_y, w->top, s->shape.height, w->upscale);
        for (int32_t column = 0; column < w->width; ++column, ++element) {
            const int64_t at_x = (int64_t)x * w->stride_x + (int64_t)column * w->dilation_x;
            const int32_t from_x = ref_place_of(at_x, w->left, s->shape.width, w->upscale);
            const int padding = from_y == -1 || from_x == -1;
            const int64_t value = from_y < 0 || from_x < 0 ? 0 : ref_source_value(s, from_y, from_x, c);
            const int64_t compared = padding ? -(INT64_C(1) << 48) : sign * value;
            found->sum += value;
            found->inside += at_y >= w->top && at_y < w->reach_y - w->bottom && /* as the padding registers say */
                             at_x >= w->left && at_x < w->reach_x - w->right;
            if (compared > found->best) {
                found->best = compared;
                found->where = element;
            }
        }
    }
}

static int64_t average(const seen *found)
{
    const int64_t count = found->inside < 1 ? 1 : found->inside;
    const int64_t size = found->sum < 0 ? -found->sum : found->sum;
    const int64_t rounded = (size + count / 2) / count;
    return found->sum < 0 ? -rounded : rounded;
}

static int64_t pooled(int mode, const seen *found, int averages)
{
    switch (mode) {
    case POOL_MAX:
        return found->best;
    case POOL_MIN:
        return -found->best;
    case POOL_ARGMAX_X:
    case POOL_ARGMAX_Y:
        return found->where << 16; /* Above 16 bits that the scale drops. */
    default:
        return averages ? average(found) : found->sum;
    }
}

void ref_pool(ref_machine *m, int mode)
{
    ref_window w;
    ref_source source;
    ref_output out;
    const ref_shape ofm = ref_ofm_shape(m);
    const int is85 = m->product == REF_U85;
    const int32_t depth = (int32_t)ref_brief(m, IFM_DEPTH_M1) + 1;
    const int reduces = mode == POOL_REDUCE_SUM;
    const ref_shape shape = {ofm.height, ofm.width, reduces ? 1 : is85 && mode == POOL_NONE ? ofm.depth : depth};
    if (mode > (is85 ? POOL_ARGMAX_Y : POOL_REDUCE_SUM)) {
        (void)ref_fail(m, "there is no such pooling");
        return;
    }
    if (shape.depth != ofm.depth) {
        (void)ref_fail(m, OTHER_DEPTH);
        return;
    }
    if (!ref_window_of(m, ofm, &w) || ref_too_much(m, shape, &w, reduces ? depth : 1)) {
        return;
    }
    memset(&source, 0, sizeof source);
    if ((!is85 || mode != POOL_NONE) && !ref_window_source(m, &w, depth, &source)) {
        return;
    }
    if (!ref_output_of(m, REF_POOL, mode, shape, &out)) {
        return;
    }
    const int padded = (w.top | w.left | w.bottom | w.right) != 0;
    const int scales = (ref_brief(m, OFM_PRECISION) >> 8 & 1u) != 0u && !(mode == POOL_AVERAGE && padded);
    int averages = mode == POOL_AVERAGE;
    if (!is85) {
        averages = mode != POOL_MAX && !scales;
        if (mode != POOL_MAX && scales) {
            const uint64_t scale = ref_wide(m, OFM_SCALE);
            out.scale = (int64_t)(scale & 0xFFFFFFFFu);
            out.places = (int32_t)(scale >> 32 & 63u);
        }
    }
    for (int32_t y = 0; y < shape.height; ++y) {
        for (int32_t x = 0; x < shape.width; ++x) {
            for (int32_t c = 0; c < shape.depth && m->fault == NULL; ++c) {
                seen found = {0, 0, 0, 0};
                if (is85 && mode == POOL_NONE) {
                    ref_put(m, &out, y, x, c, 0, out.scale, out.places);
                    continue;
                }
                look(&source, &w, y, x, c, mode == POOL_MIN ? -1 : 1, &found);
                for (int32_t more = 1; reduces && more < depth; ++more) {
                    seen next = {0, 0, 0, 0};
                    look(&source, &w, y, x, more, 1, &next);
                    found.sum += next.sum;
                }
                ref_put(m, &out, y, x, c, pooled(mode, &found, averages), out.scale, out.places);
            }
        }
    }
}

/* Where along an axis a resize looks: the element before, and how far behind it out of `whole`. */
typedef struct {
    int64_t step;
    int64_t offset;
    int64_t whole;
    int32_t size;
} axis;

static axis axis_of(ref_machine *m, int is_y, int32_t size)
{
    const int64_t whole = (int64_t)ref_brief(m, is_y ? RESIZE_Y_SCALE_N_M1 : RESIZE_X_SCALE_N_M1) + 1;
    const uint64_t reg = ref_wide(m, is_y ? RESIZE_Y : RESIZE_X);
    const axis found = {(int64_t)(reg >> 32 & 15u) * whole + (int64_t)(reg & 0x7FFu),
                        ref_signed(ref_brief(m, is_y ? RESIZE_Y_OFFSET : RESIZE_X_OFFSET), 12), whole, size};
    return found;
}

static int32_t inside(const axis *a, int64_t place)
{
    return place < 0 ? 0 : place >= a->size ? a->size - 1 : (int32_t)place;
}

static int64_t behind(const axis *a, int32_t position, int64_t *part)
{
    const int64_t place = position * a->step + a->offset;
    const int64_t rest = place % a->whole;
    *part = rest < 0 ? rest + a->whole : rest;
    return (place - *part) / a->whole;
}

void ref_resize(ref_machine *m, int mode)
{
    ref_source source;
    ref_output out;
    const ref_shape ofm = ref_ofm_shape(m);
    const ref_shape ifm = {(int32_t)ref_brief(m, KERNEL_HEIGHT_M1) + 1, (int32_t)ref_brief(m, KERNEL_WIDTH_M1) + 1,
                           (int32_t)ref_brief(m, IFM_DEPTH_M1) + 1};
    const ref_shape shape = {ofm.height, ofm.width, ifm.depth};
    const axis rows = axis_of(m, 1, ifm.height);
    const axis columns = axis_of(m, 0, ifm.width);
    if (m->product != REF_U85) {
        (void)ref_fail(m, "only the U85 resizes");
    }
    if (shape.depth != ofm.depth) {
        (void)ref_fail(m, OTHER_DEPTH);
    }
    if (m->fault != NULL || !ref_source_of(m, 0, ifm, &source) || !ref_output_of(m, REF_RESIZE, mode, shape, &out)) {
        return;
    }
    for (int32_t y = 0; y < shape.height; ++y) {
        for (int32_t x = 0; x < shape.width; ++x) {
            int64_t down = 0;
            int64_t across = 0;
            const int64_t row = behind(&rows, y, &down);
            const int64_t column = behind(&columns, x, &across);
            for (int32_t c = 0; c < shape.depth && m->fault == NULL; ++c) {
                int64_t total = 0;
                if (mode != BILINEAR) {
                    const int lower = mode == NEAREST && 2 * down >= rows.whole;
                    const int right = mode == NEAREST && 2 * across >= columns.whole;
                    total = ref_source_value(&source, inside(&rows, row + lower), inside(&columns, column + right), c);
                }
                for (int corner = 0; mode == BILINEAR && corner < 4; ++corner) {
                    const int lower = corner >> 1;
                    const int right = corner & 1;
                    const int64_t high = lower ? down : rows.whole - down;
                    const int64_t wide = right ? across : columns.whole - across;
                    const int64_t value =
                        ref_source_value(&source, inside(&rows, row + lower), inside(&columns, column + right), c);
                    total = ref_plus(total, ref_times(high * wide, value));
                }
                ref_put(m, &out, y, x, c, ref_shift_left(total, 16), out.scale, out.places);
            }
        }
    }
}
