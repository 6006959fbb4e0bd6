# A scenario application of the Himax SDK; `make` copies it there together with the sources.
override SCENARIO_APP_SUPPORT_LIST := $(APP_TYPE)
APPL_DEFINES += -DANYNPU -DTF_LITE_STATIC_MEMORY -DCMSIS_DEVICE_HEADER='"WE2_device.h"'
APPL_DEFINES += -DANYNPU_SELF_TEST=$(or $(ANYNPU_SELF_TEST),0)
# The SDK's TFLite-Micro and Ethos-U driver.
LIB_SEL = pwrmgmt $(or $(ANYNPU_TFLM),tflmtag2412_u55tag2411)
MID_SEL =
override OS_SEL :=
override TRUSTZONE := y
override TRUSTZONE_TYPE := security
override TRUSTZONE_FW_TYPE := 1
override EPII_USECASE_SEL := drv_user_defined
# A memory map of the SDK that leaves the application the SRAM.
override LINKER_SCRIPT_FILE := $(or $(ANYNPU_LINKER_SCRIPT),$(SCENARIO_APP_ROOT)/tflm_fd_fm/tflm_fd_fm.ld)
