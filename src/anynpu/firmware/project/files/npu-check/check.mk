# The same app/, model/ and vectors/ for machines without an NPU: C in npu/ executes its commands. What these builds
# count or time is the processor executing them, never the NPU.
CHECKS := check check-qemu run-host run-qemu
ifneq ($(wildcard check/host.mk),)
check:
	$(MAKE) -f check/host.mk BOARD=check/host BUILD=$(BUILD)/host CC=$(HOST_CC) CFLAGS="$(CFLAGS)" check
run-host:
	@$(MAKE) -f check/host.mk BOARD=check/host BUILD=$(BUILD)/host CC=$(HOST_CC) CFLAGS="$(CFLAGS)" run
check-qemu:
	$(MAKE) -f check/qemu.mk BOARD=check/qemu BUILD=$(BUILD)/qemu CFLAGS="$(CFLAGS)" check
run-qemu:
	@$(MAKE) -f check/qemu.mk BOARD=check/qemu BUILD=$(BUILD)/qemu CFLAGS="$(CFLAGS)" run
else
$(CHECKS):
	@echo "make $@: this model needs TFLite-Micro, which runs on the board alone (report.json says why)" >&2; exit 3
endif
HOST_CC ?= cc
.PHONY: $(CHECKS)
