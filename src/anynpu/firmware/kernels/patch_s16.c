/* uses: window */
/* Copies the part of the image under the window at (y, x) into `patch`, row by row; outside the image is 0. */
static void patch_s16(const anynpu_window *w, const int16_t *image, int32_t y, int32_t x, int16_t *patch)
{
    const int32_t depth = w->in_channels;
    const size_t column = (size_t)depth * sizeof *patch;
    const int32_t inside = w->step_x == 1 && x >= 0 && x + w->width <= w->in_width;
    for (int32_t ky = 0; ky < w->height; ++ky, y += w->step_y) {
        const int16_t *row = image + y * w->in_width * depth;
        if (y < 0 || y >= w->in_height) {
            memset(patch, 0, (size_t)w->width * column);
            patch += w->width * depth;
        } else if (inside) {
            memcpy(patch, row + x * depth, (size_t)w->width * column);
            patch += w->width * depth;
        } else {
            for (int32_t kx = 0, ix = x; kx < w->width; ++kx, ix += w->step_x, patch += depth) {
                if (ix < 0 || ix >= w->in_width) {
                    memset(patch, 0, column);
                } else {
                    memcpy(patch, row + ix * depth, column);
                }
            }
        }
    }
}
