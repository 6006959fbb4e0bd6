# The compiler of the boards' SDK must be on the PATH; its C906 wants -DCMAKE_CXX_FLAGS="-mcpu=c906fdv ...".
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR riscv64)
set(CMAKE_CXX_COMPILER riscv64-unknown-linux-musl-g++)
