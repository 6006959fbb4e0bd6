#include "answers.h"

#include <cstdint>
#include <cstring>
#include <fstream>
#include <iterator>
#include <sstream>

namespace anynpu {

std::string read_floats(const std::string &path, std::size_t count, std::vector<float> &values) {
    std::ifstream file(path.c_str(), std::ios::binary);
    if (!file) {
        return path + ": cannot be read";
    }
    const std::vector<char> raw((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
    if (raw.size() != count * sizeof(float)) {
        std::ostringstream text;
        text << path << ": holds " << raw.size() << " bytes, not " << count * sizeof(float);
        return text.str();
    }
    values.resize(count);
    for (std::size_t i = 0; i < count; ++i) {
        const unsigned char *bytes = reinterpret_cast<const unsigned char *>(&raw[i * sizeof(float)]);
        const uint32_t bits = static_cast<uint32_t>(bytes[0]) | static_cast<uint32_t>(bytes[1]) << 8 |
                              static_cast<uint32_t>(bytes[2]) << 16 | static_cast<uint32_t>(bytes[3]) << 24;
        std::memcpy(&values[i], &bits, sizeof bits);
    }
    return "";
}

std::string write_floats(const std::string &path, const std::vector<float> &values) {
    std::ofstream file(path.c_str(), std::ios::binary);
    for (const float value : values) {
        uint32_t bits;
        std::memcpy(&bits, &value, sizeof bits);
        const char bytes[4] = {static_cast<char>(bits & 0xff), static_cast<char>(bits >> 8 & 0xff),
                               static_cast<char>(bits >> 16 & 0xff), static_cast<char>(bits >> 24 & 0xff)};
        file.write(bytes, sizeof bytes);
    }
    file.close();
    return file ? "" : path + ": cannot be written";
}

}  // namespace anynpu
