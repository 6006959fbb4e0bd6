# anynpu with every toolchain that may be handed on:
#
#   docker build -t anynpu .
#   docker run --rm -it -v $(pwd):/workspace anynpu
#
# docs/docker.md says what is left out and why, and how to build it smaller.

# Only its Python 3.10 is taken, which TPU-MLIR needs and Debian does not have.
FROM python:3.10-slim-bookworm AS python310

FROM debian:bookworm-slim

# Cross compilers and the emulator that firmware is proved with; empty leaves them out.
ARG FIRMWARE="gcc-arm-none-eabi gcc-riscv64-unknown-elf libnewlib-arm-none-eabi picolibc-riscv64-unknown-elf qemu-system-arm"
# Quark compiles operators against Python's headers when it is first imported.
RUN apt-get update \
    && apt-get install --yes --no-install-recommends \
        ca-certificates cmake g++ git make python3 python3-dev python3-venv $FIRMWARE \
    && rm -rf /var/lib/apt/lists/*

COPY --from=python310 /usr/local /opt/python3.10
RUN ln -s /opt/python3.10/bin/python3.10 /usr/local/bin/python3.10 && python3.10 -c "import ensurepip, ssl, venv"

# Writable for all, so that `docker run --user $(id -u)` works too.
RUN useradd --create-home --uid 1000 anynpu \
    && mkdir --mode=1777 /opt/cache /workspace \
    && mkdir /opt/anynpu \
    && chmod 1777 /home/anynpu \
    && chown anynpu /opt/anynpu
ENV ANYNPU_CACHE_DIR=/opt/cache \
    AI8X_SYNTHESIS_PATH=/opt/ai8x-synthesis \
    HOME=/home/anynpu \
    PATH=/opt/anynpu/bin:/usr/local/bin:/usr/bin:/bin \
    PIP_DISABLE_PIP_VERSION_CHECK=1 \
    PIP_NO_CACHE_DIR=1

# ai8x-synthesis comes from its repository and no package index; empty leaves it out.
ARG AI8X_SYNTHESIS=https://github.com/analogdevicesinc/ai8x-synthesis
ARG AI8X_COMMIT=ab4f4c0
RUN if [ -n "$AI8X_SYNTHESIS" ]; then \
        git clone --quiet "$AI8X_SYNTHESIS" "$AI8X_SYNTHESIS_PATH" \
        && git -C "$AI8X_SYNTHESIS_PATH" checkout --quiet "$AI8X_COMMIT" \
        && rm -rf "$AI8X_SYNTHESIS_PATH/.git"; \
    fi

USER anynpu
# PyTorch without CUDA; elsewhere the same version brings gigabytes of it.
ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu
RUN python3 -m venv /opt/anynpu && pip install --extra-index-url "$TORCH_INDEX" torch==2.13.0
COPY --chown=anynpu LICENSE README.md pyproject.toml /tmp/source/
COPY --chown=anynpu src /tmp/source/src
RUN pip install --extra-index-url "$TORCH_INDEX" "/tmp/source[build,tasks,device,serve]" && rm -r /tmp/source

# Vendors' toolchains, by their names in `anynpu tool list`. Building the image accepts their licences.
ARG TOOLS="ai8x cvi quark"
RUN for tool in $TOOLS; do \
        PIP_EXTRA_INDEX_URL="$TORCH_INDEX" anynpu tool install "$tool" --accept-licence || exit; \
    done

# Any other user may lock, log, install and use what Quark has compiled; the capsules themselves stay as they are.
RUN anynpu targets > /dev/null && anynpu tool list \
    && find /home/anynpu /opt/cache -path '/opt/cache/capsules/*-*' -prune -o -user anynpu -exec chmod a+rwX {} +

WORKDIR /workspace
CMD ["bash"]
