/* The memory that the model's command streams take when the processor executes them. Generated; do not edit. */
#define ETHOSU_REFERENCE_BYTES @WORKING@u
#define ETHOSU_REFERENCE_FAST_BYTES @FAST@u
