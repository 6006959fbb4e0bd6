#!/usr/bin/env bash
# Installs the Debian packages that tests use (firmware, HTML reports), where that is possible; tests say what is missing otherwise.
set -uo pipefail

declare -A package=(
  [qemu-system-arm]=qemu-system-arm
  [arm-none-eabi-gcc]=gcc-arm-none-eabi
  [clang]=clang
  [cppcheck]=cppcheck
  [riscv64-unknown-elf-gcc]="gcc-riscv64-unknown-elf picolibc-riscv64-unknown-elf"
  [cmake]=cmake
  [chromium]=chromium
  [gcc]=gcc
  [make]=make
)
missing=()
for program in "${!package[@]}"; do
  # shellcheck disable=SC2206  # one program may need two packages
  command -v "$program" >/dev/null || missing+=(${package[$program]})
done
if command -v arm-none-eabi-gcc >/dev/null && [ "$(arm-none-eabi-gcc -print-file-name=libc.a)" = libc.a ]; then
  missing+=(libnewlib-arm-none-eabi)
elif ! command -v arm-none-eabi-gcc >/dev/null; then
  missing+=(libnewlib-arm-none-eabi)
fi
[ ${#missing[@]} -eq 0 ] && exit 0

root=()
if [ "$(id -u)" -ne 0 ]; then root=(sudo -n); fi
if command -v apt-get >/dev/null && { [ "$(id -u)" -eq 0 ] || sudo -n true 2>/dev/null; }; then
  echo "installing ${missing[*]}" >&2
  "${root[@]}" apt-get install -y -qq "${missing[@]}" >/dev/null 2>&1 \
    || { "${root[@]}" apt-get update -qq && "${root[@]}" apt-get install -y -qq "${missing[@]}" >/dev/null; } && exit 0
fi
echo "tests that need them are skipped; to run them: apt install ${missing[*]}" >&2
exit 0
