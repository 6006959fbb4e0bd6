/* The text protocol of MLPerf Tiny with additions of our own (lines that begin with a-). */
#ifndef ANYNPU_PROTOCOL_H
#define ANYNPU_PROTOCOL_H

#ifdef __cplusplus
extern "C" {
#endif

/* The longest command without its end; a `db` line may carry (ANYNPU_LINE_MAX - 3) / 2 bytes. */
#ifndef ANYNPU_LINE_MAX
#define ANYNPU_LINE_MAX 600
#endif

/* The most repetitions of `stages`: every one is kept until the median is known. */
#ifndef ANYNPU_STAGE_RUNS
#define ANYNPU_STAGE_RUNS 101
#endif

void anynpu_serve(void); /* Answers commands until the line ends. */

#ifdef __cplusplus
}
#endif

#endif
