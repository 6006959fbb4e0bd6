/* The inside of the reference executor: registers, memories, feature maps and what the files hand to each other.

   It computes what an Ethos-U55, U65 or U85 stores, one operation after the other. It is not a model of time: how long
   the processor takes for it says nothing about how long an NPU takes. */
#ifndef ETHOSU_REFERENCE_H
#define ETHOSU_REFERENCE_H

#include <stddef.h>
#include <stdint.h>

/* Memory for decoded weights, windows and what operations hand on; the generated header knows how much is needed. */
#ifndef ETHOSU_REFERENCE_BYTES
#include "ethosu_reference_bytes.h"
#endif
#ifndef ETHOSU_REFERENCE_FAST_BYTES
#define ETHOSU_REFERENCE_FAST_BYTES 0
#endif

/* Multiplications of one operation beyond which no NPU is asked to go. */
#ifndef ETHOSU_REFERENCE_WORK
#define ETHOSU_REFERENCE_WORK (UINT64_C(1) << 36)
#endif

#define REF_REGIONS 8
#define REF_CHAINS 8
#define REF_TABLES 2048 /* The end of the on-chip memory, where tables are. */
#define REF_STREAMS 4

enum { REF_U55 = 0, REF_U65 = 1, REF_U85 = 2 };
enum {
    REF_CONV = 0x02, REF_DEPTHWISE = 0x03, REF_POOL = 0x05, REF_ELEMENTWISE = 0x06, REF_RESIZE = 0x07, REF_DMA = 0x10
};
enum { REF_DOUBLE, REF_NATURAL, REF_AWAY, REF_DOWN, REF_TO_ZERO };

/* Registers of 16 bits by their command. */
enum {
    IFM_PAD_TOP = 0x100, IFM_PAD_LEFT, IFM_PAD_RIGHT, IFM_PAD_BOTTOM, IFM_DEPTH_M1, IFM_PRECISION,
    IFM_UPSCALE = 0x107, IFM_BROADCAST, IFM_ZERO_POINT, IFM_WIDTH0_M1, IFM_HEIGHT0_M1, IFM_HEIGHT1_M1,
    IFM_REGION = 0x10F,
    OFM_WIDTH_M1 = 0x111, OFM_HEIGHT_M1, OFM_DEPTH_M1, OFM_PRECISION, OFM_BLK_DEPTH_M1 = 0x117, OFM_ZERO_POINT,
    OFM_WIDTH0_M1 = 0x11A, OFM_HEIGHT0_M1, OFM_HEIGHT1_M1, OFM_REGION = 0x11F,
    KERNEL_WIDTH_M1 = 0x120, KERNEL_HEIGHT_M1, KERNEL_STRIDE, PARALLEL_MODE, ACC_FORMAT, ACTIVATION, ACTIVATION_MIN,
    ACTIVATION_MAX, WEIGHT_REGION, SCALE_REGION, RESIZE_X_SCALE_N_M1, RESIZE_Y_SCALE_N_M1, RESIZE_X_OFFSET,
    RESIZE_Y_OFFSET, WEIGHT_FORMAT, DMA0_SRC_REGION = 0x130, DMA0_DST_REGION, DMA0_SIZE0, DMA0_SIZE1, DMA0_IDX_REGION,
    IFM2_BROADCAST = 0x180, IFM2_SCALAR, IFM2_PRECISION = 0x185, IFM2_ZERO_POINT = 0x189, IFM2_WIDTH0_M1,
    IFM2_HEIGHT0_M1, IFM2_HEIGHT1_M1, IFM2_REGION = 0x18F
};

/* Registers of 32 bits and 16 more by their command; the names after them are what the other chips call them. */
enum {
    IFM_BASE0 = 0x00, IFM_STRIDE_X = 0x04, IFM_STRIDE_Y, IFM_STRIDE_C,
    OFM_BASE0 = 0x10, OFM_STRIDE_X = 0x14, OFM_STRIDE_Y, OFM_STRIDE_C,
    WEIGHT_BASE = 0x20, WEIGHT_LENGTH, SCALE_BASE, SCALE_LENGTH, OFM_SCALE, IFM_SCALE, IFM2_SCALE, OP_SCALAR,
    DMA0_SRC = 0x30, DMA0_DST, DMA0_LEN, DMA0_SRC_STRIDE0, DMA0_SRC_STRIDE1, DMA0_DST_STRIDE0, DMA0_DST_STRIDE1,
    DMA0_IDX, DMA0_IDX_MAX, DMA0_IDX_SKIP1,
    IFM2_BASE0 = 0x80, IFM2_STRIDE_X = 0x84, IFM2_STRIDE_Y, IFM2_STRIDE_C,
    WEIGHT1_BASE = 0x90, WEIGHT1_LENGTH, SCALE1_BASE, SCALE1_LENGTH, WEIGHT3_BASE, WEIGHT3_LENGTH, RESIZE_X, RESIZE_Y,
    REF_LONG = 0x98
};

#define REF_SHORT_FIRST 0x100
#define REF_SHORT 0x90

typedef struct {
    int32_t height;
    int32_t width;
    int32_t depth;
} ref_shape;

/* What an operation of the U85 hands to the next without storing it. */
typedef struct {
    int32_t *data;
    uint32_t capacity;
    int is_unsigned;
    int filled;
    ref_shape shape;
} ref_chain;

typedef struct {
    uint16_t brief[REF_SHORT];
    uint8_t brief_written[REF_SHORT];
    uint64_t wide[REF_LONG];
    uint8_t wide_written[REF_LONG];
    uint8_t *region[REF_REGIONS];
    uint64_t region_bytes[REF_REGIONS];
    uint8_t tables[REF_TABLES];
    uint32_t table_bytes;
    int product;
    int32_t macs;
    int32_t cores;
    uint32_t operation;
    const char *fault; /* Why execution ended, or a null pointer. */
    uint8_t *work;     /* What one operation needs grows from the start, what is handed on from the end. */
    uint32_t work_bytes;
    uint32_t kept_bytes;
    ref_chain chains[REF_CHAINS];
    int64_t *accumulator;
    uint32_t accumulator_capacity;
    ref_shape accumulator_shape;
    int accumulator_filled;
} ref_machine;

/* Where a tensor lies and how its bytes are to be read. */
typedef struct {
    uint8_t *memory;
    uint64_t memory_bytes;
    int writable;
    int64_t base[4];
    int32_t height0;
    int32_t height1;
    int32_t width0;
    int64_t stride_y;
    int64_t stride_x;
    int64_t stride_c;
    int32_t bytes;
    int is_signed;
    int bricks;
    int32_t zero_point;
} ref_map;

/* What an operation reads: a feature map, what was chained, or one number. */
typedef struct {
    ref_map map;
    const ref_chain *chain;
    int is_scalar;
    int64_t scalar;
    int64_t zero_point;
    ref_shape shape;
} ref_source;

/* How results are scaled, clipped, looked up and where they go. */
typedef struct {
    ref_map map;
    ref_shape shape;
    int64_t zero_point;
    int64_t scale;
    int32_t places;
    int rounding;
    int clips;
    int64_t low;
    int64_t high;
    int64_t least;
    int64_t most;
    int limits;
    int curve; /* 0, 1 for tanh, 2 for the logistic function. */
    int table_kind;
    const uint8_t *table;
    int keeps;
    ref_chain *chain;
    int adds;
    ref_source addend;
    int32_t flip;
    int32_t turn[3];
} ref_output;

/* Short and long registers; one that was never written is a fault. */
uint32_t ref_brief(ref_machine *m, int number);
uint64_t ref_wide(ref_machine *m, int number);
int64_t ref_address(ref_machine *m, int number);
int64_t ref_stride(ref_machine *m, int number);
int ref_is_written(const ref_machine *m, int number);
int64_t ref_signed(uint64_t value, int bits);
int ref_fail(ref_machine *m, const char *why); /* Notes the first fault; 0. */

/* A stretch of a region, or a null pointer and a fault. */
uint8_t *ref_bytes(ref_machine *m, uint32_t region, int64_t address, int64_t length);
void *ref_scratch(ref_machine *m, uint64_t *used, uint64_t bytes); /* Memory until the operation ends. */
void *ref_kept(ref_machine *m, uint64_t bytes);                    /* Memory until the stream ends. */

/* The map whose registers begin with IFM (0), IFM2 (1) or OFM (2). */
int ref_map_of(ref_machine *m, int which, ref_map *map);
int ref_map_check(ref_machine *m, const ref_map *map, ref_shape shape); /* 1 if all of it is in its region. */
int64_t ref_map_pixel(const ref_map *map, int32_t y, int32_t x);
int64_t ref_map_channel(const ref_map *map, int32_t c);
int64_t ref_load(const uint8_t *from, int32_t bytes, int is_signed);
void ref_store(uint8_t *to, int32_t bytes, int64_t value);
int64_t ref_source_value(const ref_source *source, int32_t y, int32_t x, int32_t c); /* Less its zero point. */
int ref_source_of(ref_machine *m, int which, ref_shape shape, ref_source *source);

int64_t ref_rescale(int64_t value, int64_t scale, int32_t places, int rounding);
int64_t ref_shift(int64_t value, int32_t places, int rounding);
int64_t ref_shift_left(int64_t value, int32_t places);
int64_t ref_times(int64_t a, int64_t b);
int64_t ref_plus(int64_t a, int64_t b);

int ref_output_of(ref_machine *m, int kind, int mode, ref_shape shape, ref_output *out);
/* Finishes one value; per-channel scales come with it. */
void ref_put(ref_machine *m, const ref_output *out, int32_t y, int32_t x, int32_t c, int64_t total, int64_t scale,
             int32_t places);

/* Compressed weights, one after the other. */
typedef struct {
    const uint8_t *bytes;
    uint32_t length;
    uint64_t bit;
    int is_fast;
    int plain;
    int32_t adjust;
    int32_t index_bits;
    uint64_t taken;
    uint64_t count;
    uint32_t part;
    uint32_t parts;
    uint64_t part_weights;
    int started;
    int ended;
    int runs;
    int run_next;
    uint32_t zeros;
    int32_t palette[32];
    int32_t palette_size;
    int32_t palette_bits;
    int32_t offset;
    int32_t run_bits;
    int32_t value_bits;
    int unpacked;
    int truncated;
    uint32_t values_left;
    uint32_t runs_left;
    uint32_t values_read;
    uint32_t runs_read;
    uint32_t values_wanted;
    uint32_t runs_wanted;
    uint32_t value_carry;
    uint32_t run_carry;
    int value_count;
    int run_count;
    uint32_t value_quotients[12];
    uint32_t run_quotients[12];
    uint16_t value_queue[64];
    uint32_t run_queue[64];
    uint32_t value_head;
    uint32_t value_tail;
    uint32_t run_head;
    uint32_t run_tail;
} ref_weights;

void ref_weights_start(ref_weights *w, const uint8_t *bytes, uint32_t length);
int ref_weights_next(ref_machine *m, ref_weights *w, int32_t *value); /* 0 at the end of the stream or on a fault. */
void ref_weights_fast(ref_machine *m, ref_weights *w, const uint8_t *bytes, uint32_t length);

/* What decides in which order weights come. */
typedef struct {
    int32_t height;
    int32_t width;
    int32_t ifm_depth; /* 1 for a depthwise convolution. */
    int32_t ofm_depth;
    int depthwise;
    int part_kernel;
    int sparse;
    int32_t block;
    int32_t ifm_block;
    int32_t micro;
    int32_t ifm_micro;
    int32_t ifm_bits;
    int32_t rounding;
    int32_t pause;
    int32_t stride_y;
    int32_t stride_x;
    int32_t dilation_y;
    int32_t dilation_x;
    int32_t streams;
} ref_order;

/* Decodes the weights of the block of outputs from `first` on into [output][row][column][input]; 1 on success. */
int ref_block55(ref_machine *m, ref_weights *w, const ref_order *order, int32_t first, int16_t *to);
int ref_block85(ref_machine *m, ref_weights *w, const ref_order *order, int32_t first, int16_t *to);
int ref_weights_end(ref_machine *m, ref_weights *w); /* 1 if nothing but zeros is left. */

void ref_convolution(ref_machine *m, int kind, int mode);
void ref_pool(ref_machine *m, int mode);
void ref_resize(ref_machine *m, int mode);
void ref_elementwise(ref_machine *m, int mode);
void ref_dma(ref_machine *m);

/* Where the window of an operation lies on its input. */
typedef struct {
    int32_t height;
    int32_t width;
    int32_t stride_y;
    int32_t stride_x;
    int32_t dilation_y;
    int32_t dilation_x;
    int32_t top;
    int32_t left;
    int32_t bottom;
    int32_t right;
    int upscale;
    int part_kernel;
    int64_t reach_y; /* Rows and columns of the padded input that the output needs. */
    int64_t reach_x;
} ref_window;

int ref_window_of(ref_machine *m, ref_shape ofm, ref_window *window);
/* The input of a window operation, which may be chained; registers do not hold its size. */
int ref_window_source(ref_machine *m, const ref_window *window, int32_t depth, ref_source *source);
ref_shape ref_ofm_shape(ref_machine *m);
/* Which row or column of the input stands at a place of the padded one: -1 padding, -2 a zero of the upscaling. */
int32_t ref_place_of(int64_t padded, int32_t before, int32_t size, int upscale);
int ref_too_much(ref_machine *m, ref_shape ofm, const ref_window *w, int32_t depth); /* 1 and a fault, or 0. */

#endif
