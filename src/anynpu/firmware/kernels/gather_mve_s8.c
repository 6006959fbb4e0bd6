/* uses: window copy_mve_s8 */
/* Copies the part of the image under the window at (y, x) into `patch`, row by row; outside the image is `zero`. Reads
   and writes whole vectors, up to 15 bytes behind the image and the patch. */
__attribute__((noinline)) static void gather_mve_s8(const anynpu_window *w, const int8_t *image, int32_t y, int32_t x,
                                                    int8_t zero, int8_t *patch)
{
    const int32_t depth = w->in_channels;
    const int32_t row = w->in_width * depth;
    const int32_t past = x + w->width - w->in_width;
    const int32_t before = x < 0 ? (-x < w->width ? -x : w->width) : 0;
    const int32_t after = past > 0 ? (past < w->width ? past : w->width) : 0;
    for (int32_t ky = 0; ky < w->height; ++ky, y += w->step_y) {
        if (y < 0 || y >= w->in_height) {
            patch = fill_mve_s8(patch, zero, w->width * depth);
        } else if (w->step_x == 1) {
            patch = fill_mve_s8(patch, zero, before * depth);
            patch = copy_mve_s8(patch, image + y * row + (x + before) * depth, (w->width - before - after) * depth);
            patch = fill_mve_s8(patch, zero, after * depth);
        } else {
            for (int32_t kx = 0, ix = x; kx < w->width; ++kx, ix += w->step_x) {
                patch = ix < 0 || ix >= w->in_width ? fill_mve_s8(patch, zero, depth)
                                                    : copy_mve_s8(patch, image + y * row + ix * depth, depth);
            }
        }
    }
}

/* The same where the window lies inside the image: `rows` rows of `count` bytes, `stride` apart. */
__attribute__((noinline)) static void rows_mve_s8(const int8_t *from, int32_t stride, int32_t rows, int32_t count,
                                                  int8_t *patch)
{
    const int32_t vectors = (count + 15) >> 4;
    do {
        const int8_t *x = from;
        int8_t *to = patch;
        int32_t left = vectors;
        do {
            vstrbq_s8(to, vldrbq_s8(x));
            to += 16;
            x += 16;
        } while (--left != 0);
        from += stride;
        patch += count;
    } while (--rows != 0);
}
