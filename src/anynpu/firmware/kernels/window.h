/* A window that moves over an image of height x width x channels. */
typedef struct {
    int32_t batches;
    int32_t in_height;
    int32_t in_width;
    int32_t in_channels;
    int32_t out_height;
    int32_t out_width;
    int32_t out_channels;
    int32_t height;
    int32_t width;
    int32_t stride_y;
    int32_t stride_x;
    int32_t step_y; /* dilation */
    int32_t step_x;
    int32_t pad_y;
    int32_t pad_x;
} anynpu_window;
