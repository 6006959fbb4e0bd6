/* uses: window */
/* One row of a patch: `depth` values for each column of the window; columns outside of the image are `zero`. */
static void gather_row_s8(const anynpu_window *w, const int8_t *row, int32_t x, int8_t zero, int8_t *patch)
{
    const int32_t depth = w->in_channels;
    if (w->step_x == 1) {
        const int32_t before = x < 0 ? (-x < w->width ? -x : w->width) : 0;
        const int32_t end = x + w->width;
        const int32_t after = end > w->in_width ? (end - w->in_width < w->width ? end - w->in_width : w->width) : 0;
        const int32_t middle = w->width - before - after;
        memset(patch, zero, (size_t)(before * depth));
        if (middle > 0) {
            memcpy(patch + before * depth, row + (x + before) * depth, (size_t)(middle * depth));
        }
        memset(patch + (w->width - after) * depth, zero, (size_t)(after * depth));
        return;
    }
    for (int32_t kx = 0; kx < w->width; ++kx, x += w->step_x, patch += depth) {
        if (x < 0 || x >= w->in_width) {
            memset(patch, zero, (size_t)depth);
        } else {
            memcpy(patch, row + x * depth, (size_t)depth);
        }
    }
}

/* Copies the part of the image under the window at (y, x) into `patch`, row by row; outside the image is `zero`. */
static void gather_s8(const anynpu_window *w, const int8_t *image, int32_t y, int32_t x, int8_t zero, int8_t *patch)
{
    const int32_t row_bytes = w->width * w->in_channels;
    const int32_t image_row = w->in_width * w->in_channels;
    const int32_t inside = w->step_x == 1 && x >= 0 && x + w->width <= w->in_width;
    for (int32_t ky = 0; ky < w->height; ++ky, y += w->step_y, patch += row_bytes) {
        if (y < 0 || y >= w->in_height) {
            memset(patch, zero, (size_t)row_bytes);
        } else if (inside) {
            memcpy(patch, image + y * image_row + x * w->in_channels, (size_t)row_bytes);
        } else {
            gather_row_s8(w, image + y * image_row, x, zero, patch);
        }
    }
}
