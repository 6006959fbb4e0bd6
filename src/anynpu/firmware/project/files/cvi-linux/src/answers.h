/* The file of known answers: for each vector all inputs, then all outputs, as little-endian 32-bit floats. */
#ifndef ANYNPU_ANSWERS_H
#define ANYNPU_ANSWERS_H

#include <cstddef>
#include <string>
#include <vector>

namespace anynpu {

/* Reads a file of little-endian floats; returns an empty text, or what went wrong in one sentence. */
std::string read_floats(const std::string &path, std::size_t count, std::vector<float> &values);

/* Writes them. */
std::string write_floats(const std::string &path, const std::vector<float> &values);

}  // namespace anynpu

#endif
