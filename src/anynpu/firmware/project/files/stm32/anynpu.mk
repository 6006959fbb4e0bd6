# For the Makefile that CubeMX writes: add `include /path/to/this/anynpu.mk` below its list of C_SOURCES.
ANYNPU_DIR := $(patsubst %/,%,$(dir $(lastword $(MAKEFILE_LIST))))
C_SOURCES += $(wildcard $(ANYNPU_DIR)/Core/Src/*.c)
C_INCLUDES += -I$(ANYNPU_DIR)/Core/Inc
