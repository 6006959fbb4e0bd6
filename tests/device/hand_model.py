"""The model of board_model.py as C written by hand: an artifact that real firmware can be built around."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from board_model import FINGERPRINT, INPUTS, OUTPUTS, vectors

from anynpu.artifact import Artifact, Made, Manifest, Step, seal

HEADER = """
#ifndef ANYNPU_MODEL_H
#define ANYNPU_MODEL_H
#include <stdint.h>
#define ANYNPU_MODEL_NAME "by-hand"
#define ANYNPU_MODEL_FINGERPRINT "@FINGERPRINT@"
#define ANYNPU_MODEL_MACS 105
#define ANYNPU_ARENA_BYTES 128
#define ANYNPU_NUM_INPUTS 2
#define ANYNPU_NUM_OUTPUTS 2
#define ANYNPU_MAX_RANK 6
#define ANYNPU_INPUT_0_HEIGHT 5
#define ANYNPU_INPUT_0_WIDTH 7
#define ANYNPU_INPUT_0_CHANNELS 3
typedef enum {
    ANYNPU_INT8, ANYNPU_UINT8, ANYNPU_INT16, ANYNPU_INT32, ANYNPU_INT64, ANYNPU_FLOAT32, ANYNPU_BOOL
} anynpu_type;
typedef struct {
    const char *name;
    void *data;
    uint32_t bytes;
    uint32_t elements;
    anynpu_type type;
    uint8_t rank;
    int32_t shape[ANYNPU_MAX_RANK];
    float scale;
    int32_t zero_point;
} anynpu_tensor;
int anynpu_init(void);
const anynpu_tensor *anynpu_input(int i);
const anynpu_tensor *anynpu_output(int i);
int anynpu_invoke(void);
#endif
"""
SOURCE = """
#include "anynpu_model.h"
static int8_t image[105];
static int16_t gain[4];
static int8_t scores[4];
static int32_t sum[1];
static const anynpu_tensor inputs[2] = {
    {"image", image, 105, 105, ANYNPU_INT8, 4, {1, 5, 7, 3}, 0.0078125f, -1},
    {"gain", gain, 8, 4, ANYNPU_INT16, 2, {1, 4}, 0.5f, 0},
};
static const anynpu_tensor outputs[2] = {
    {"scores", scores, 4, 4, ANYNPU_INT8, 2, {1, 4}, 0.25f, 3},
    {"sum", sum, 4, 1, ANYNPU_INT32, 2, {1, 1}, 0.0f, 0},
};
int anynpu_init(void) { return 0; }
const anynpu_tensor *anynpu_input(int i) { return &inputs[i]; }
const anynpu_tensor *anynpu_output(int i) { return &outputs[i]; }
int anynpu_invoke(void)
{
    int32_t weighted = 0;
    for (int i = 0; i < 105; ++i) {
        weighted += image[i] * (i + 1);
    }
    for (int i = 0; i < 4; ++i) {
        const int32_t value = (weighted + gain[i] * 3) % 200;
        scores[i] = (int8_t)((value < 0 ? value + 200 : value) - 100 + @OFF@);
    }
    sum[0] = weighted;
    return 0;
}
"""


def c_artifact(folder: Path, chip: str, off: int = 0, fingerprint: str = FINGERPRINT) -> Artifact:
    """Returns the artifact in folder/CHIP; with `off` its scores are not those of its known answers."""
    path = folder / chip
    path.mkdir(parents=True)
    (path / "anynpu_model.h").write_text(HEADER.replace("@FINGERPRINT@", fingerprint))
    (path / "anynpu_model.c").write_text(SOURCE.replace("@OFF@", str(off)))
    evidence = folder / "evidence" / chip
    evidence.mkdir(parents=True)
    known = vectors()
    np.savez(evidence / "vectors.npz", **{name: np.concatenate([v[name] for v in known]) for name in known[0]})
    manifest = Manifest("c", "anynpu_model.h", INPUTS, OUTPUTS, fingerprint)
    return seal(path, manifest, Step("mcu_c", platform=chip), Made("2025-01-01", 0.0))
