/* uses: window */
/* Copies the part of the image under the window at (y, x) into `patch`, row by row; outside the image is `zero`. */
static void gather_s8(const anynpu_window *w, const int8_t *image, int32_t y, int32_t x, int8_t zero, int8_t *patch)
{
    const int32_t depth = w->in_channels;
    const int32_t row_bytes = w->width * depth;
    const int32_t inside = w->step_x == 1 && x >= 0 && x + w->width <= w->in_width;
    for (int32_t ky = 0; ky < w->height; ++ky, y += w->step_y, patch += row_bytes) {
        const int8_t *row = image;
        if (y < 0 || y >= w->in_height) {
            memset(patch, zero, (size_t)row_bytes);
            continue;
        }
        row += y * w->in_width * depth;
        if (inside) {
            memcpy(patch, row + x * depth, (size_t)row_bytes);
        } else {
            int8_t *to = patch;
            for (int32_t kx = 0, column = x; kx < w->width; ++kx, column += w->step_x, to += depth) {
                if (column < 0 || column >= w->in_width) {
                    memset(to, zero, (size_t)depth);
                } else {
                    memcpy(to, row + column * depth, (size_t)depth);
                }
            }
        }
    }
}
