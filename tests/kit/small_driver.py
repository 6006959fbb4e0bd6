"""A driver tree of our own with the shapes of the vendor's: the same names, none of its text."""

from __future__ import annotations

import hashlib
from pathlib import Path

SKY1 = """// a platform of our own
#include <linux/module.h>
#include <linux/platform_device.h>

/* remove_debugfs_dir(x) { is named here, and sky1_npu_devfreq_target( too } */
static const char *story = "sky1_npu_devfreq_remove(dev) { pm_runtime_put(dev); }";

static void remove_debugfs_dir(const char *name)
{
    if (name) { forget(name); }
}

static int sky1_npu_devfreq_target(struct device *dev, unsigned long *freq, u32 flags)
{
    return scmi_device_get_freq(dev);
}

static int sky1_npu_devfreq_remove(struct device *dev)
{
    remove_debugfs_dir("}");
    return 0;
}

int put_it(struct device *dev)
{
	int ret = 0;

	ret = pm_runtime_put(dev);
	return ret;
}

static int sky1_npu_probe(struct platform_device *p_dev)
{
	int ret = 0;
#ifdef CONFIG_ENABLE_DEVFREQ
	ret = sky1_npu_devfreq_target(&p_dev->dev, NULL, 0);
	if (ret)
		goto devfreq_init_failed;
#endif
	pm_runtime_put(&p_dev->dev);
devfreq_init_failed:
	return ret;
}

static int sky1_npu_remove(struct platform_device *p_dev)
{
	if (!p_dev) return -1;
	return 0;
}

static int suspend(struct device *dev)
{
	int ret;
	for (int i = 0; i < 3; i++) {
		ret = pm_runtime_put(cores[i]);
		if (ret < 0)
			return ret;
	}
	return ret;
}

static const struct acpi_device_id aipu_acpi_match[] = { { .id = "CIXH4000" }, { } };
MODULE_DEVICE_TABLE(acpi, aipu_acpi_match);

static struct platform_driver aipu_platform_driver = {
	.probe = sky1_npu_probe,
	.remove = sky1_npu_remove,
	.driver = { .name = "own" },
};

module_platform_driver(aipu_platform_driver);
MODULE_LICENSE("GPL v2");
"""

DMA_BUF = """#include <linux/version.h>
#include <linux/module.h>

/* MODULE_IMPORT_NS(DMA_BUF); in a comment */
#if KERNEL_VERSION(5, 4, 0) < LINUX_VERSION_CODE
MODULE_IMPORT_NS(DMA_BUF);
#endif"""  # no line end

MM = """#include <linux/version.h>

static int aipu_mm_reserved_iova_for_never_map(struct aipu_memory_manager *mm, bool flag);

static int aipu_mm_reserved_iova_for_never_map(struct aipu_memory_manager *mm, bool flag)
{
	struct iommu_dma_cookie *cookie = NULL;
#if (KERNEL_VERSION(5, 5, 0) <= LINUX_VERSION_CODE)
	if (!mm) {
		return -EINVAL;
	}
#endif
	return use(cookie, flag);
}

static int caller(struct aipu_memory_manager *mm)
{
	return aipu_mm_reserved_iova_for_never_map(mm, true);
}
"""

MAKEFILE = """MODULE_NAME := aipu
EXTRA_CFLAGS += -I$(PWD)/armchina-npu/
COMM_OBJ := $(SRC_DIR)/armchina-npu/aipu.o \\
            $(SRC_DIR)/armchina-npu/aipu_mm.o \\
            $(SRC_DIR)/armchina-npu/aipu_dma_buf.o

obj-m := $(MODULE_NAME).o
"""

FILES = {
    "Makefile": MAKEFILE,
    "dkms.conf": 'PACKAGE_NAME="aipu"\nPACKAGE_VERSION="5.11.0"\n',
    "armchina-npu/aipu.c": "int aipu;\n",
    "armchina-npu/sky1/sky1.c": SKY1,
    "armchina-npu/aipu_dma_buf.c": DMA_BUF,
    "armchina-npu/aipu_mm.c": MM,
    "armchina-npu/zhouyi/v3.c": "int v3;\n",
    "armchina-npu/include/cix_sky1_soc.h": "#define OWN 1\n",
    "armchina-npu/include/armchina_aipu.h": "/* caf\xe9: not UTF-8 */\n",
}


def write_tree(folder: Path) -> Path:
    """Writes the tree and returns its folder."""
    for name, text in FILES.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text.encode("latin-1"))
    return folder


def digests(folder: Path) -> dict[str, str]:
    """Returns the sha256 of every file."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def by_hand(folder: Path) -> Path:
    """Changes a tree the way that people do by hand for one new kernel."""
    sky1 = folder / "armchina-npu/sky1/sky1.c"
    text = sky1.read_text("utf-8").replace("static int sky1_npu_remove", "static void sky1_npu_remove")
    text = text.replace(
        "static int sky1_npu_devfreq_target", "#ifdef CONFIG_ENABLE_DEVFREQ\nstatic int sky1_npu_devfreq_target"
    )
    sky1.write_text(text.replace("int put_it", "#endif\nint put_it"), "utf-8")
    dma_buf = folder / "armchina-npu/aipu_dma_buf.c"
    dma_buf.write_text(
        dma_buf.read_text("utf-8").replace("\nMODULE_IMPORT_NS(DMA_BUF)", '\nMODULE_IMPORT_NS("DMA_BUF")')
    )
    (folder / "Makefile").write_text("ccflags-y += -I$(src)\nobj-m := aipu.o\naipu-y := armchina-npu/aipu.o\n")
    return folder
