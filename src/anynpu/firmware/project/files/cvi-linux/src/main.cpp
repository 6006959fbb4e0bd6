/* The known-answer test, one run on values of your own, and a stopwatch.
 *
 *   anynpu-cvi                            runs every known answer; status 0 when all pass, 1 when one fails
 *   anynpu-cvi --run IN.bin OUT.bin       all inputs as 32-bit floats in, all outputs out
 *   anynpu-cvi --bench N                  N runs of the first known answer after a tenth of it as warm-up
 *
 * --model FILE, --vectors FILE and --tolerance T come before. Status 2: something could not be done at all.
 */
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "anynpu_tensors.h"
#include "answers.h"
#include "cvi_model.h"

namespace {

using anynpu::CviModel;
using anynpu::Tensor;

struct Arguments {
    std::string model = "model/" ANYNPU_MODEL_FILE;
    std::string vectors = "vectors/vectors.bin";
    std::string run_input;
    std::string run_output;
    double tolerance = ANYNPU_TOLERANCE;
    long bench = 0;
};

int cannot(const std::string &why) {
    std::fprintf(stderr, "anynpu-cvi: %s\n", why.c_str());
    return 2;
}

std::size_t total(const Tensor *tensors, std::size_t count) {
    std::size_t sum = 0;
    for (std::size_t i = 0; i < count; ++i) {
        sum += tensors[i].size;
    }
    return sum;
}

std::size_t input_values() { return total(anynpu_inputs, ANYNPU_INPUTS); }
std::size_t output_values() { return total(anynpu_outputs, ANYNPU_OUTPUTS); }

/* Runs the model on one row of values and appends its outputs. */
std::string infer(CviModel &model, const float *values, std::vector<float> &outputs) {
    for (std::size_t i = 0; i < ANYNPU_INPUTS; values += anynpu_inputs[i].size, ++i) {
        const std::string wrong = model.set_input(i, values);
        if (!wrong.empty()) {
            return wrong;
        }
    }
    const std::string wrong = model.forward();
    if (!wrong.empty()) {
        return wrong;
    }
    outputs.resize(output_values());
    float *target = outputs.data();
    for (std::size_t i = 0; i < ANYNPU_OUTPUTS; target += anynpu_outputs[i].size, ++i) {
        const std::string unread = model.get_output(i, target);
        if (!unread.empty()) {
            return unread;
        }
    }
    return "";
}

/* Compares one vector; prints its line and returns whether it passes. */
bool compare(const CviModel &model, unsigned vector, const float *wanted, const float *got, double tolerance) {
    double worst = 0.0;
    for (std::size_t i = 0; i < ANYNPU_OUTPUTS; wanted += anynpu_outputs[i].size, got += anynpu_outputs[i].size, ++i) {
        const Tensor &tensor = anynpu_outputs[i];
        const double allowed = std::max(tolerance * static_cast<double>(tensor.peak), 1e-6) +
                               static_cast<double>(model.output_step(i));
        for (std::size_t k = 0; k < tensor.size; ++k) {
            const double off = std::fabs(static_cast<double>(got[k]) - static_cast<double>(wanted[k]));
            /* Written so that NaN fails. */
            if (!(off <= allowed)) {
                std::printf("kat %u FAIL output %s[%zu] expected %.9g got %.9g\n", vector, tensor.name, k,
                            static_cast<double>(wanted[k]), static_cast<double>(got[k]));
                return false;
            }
            worst = std::max(worst, off / allowed);
        }
    }
    std::printf("kat %u PASS largest deviation %.0f %% of what is allowed\n", vector, 100.0 * worst);
    return true;
}

int self_test(CviModel &model, const std::vector<float> &known, double tolerance) {
    const std::size_t row = input_values() + output_values();
    unsigned passed = 0;
    std::vector<float> got;
    for (unsigned vector = 0; vector < ANYNPU_VECTORS; ++vector) {
        const float *values = known.data() + vector * row;
        const std::string wrong = infer(model, values, got);
        if (!wrong.empty()) {
            return cannot(wrong);
        }
        passed += compare(model, vector, values + input_values(), got.data(), tolerance) ? 1u : 0u;
    }
    const bool fine = passed == ANYNPU_VECTORS;
    std::printf("kat-result %s %u/%u\n", fine ? "PASS" : "FAIL", passed, ANYNPU_VECTORS);
    return fine ? 0 : 1;
}

int run_once(CviModel &model, const Arguments &arguments) {
    std::vector<float> given;
    std::vector<float> got;
    std::string wrong = anynpu::read_floats(arguments.run_input, input_values(), given);
    if (wrong.empty()) {
        wrong = infer(model, given.data(), got);
    }
    if (wrong.empty()) {
        wrong = anynpu::write_floats(arguments.run_output, got);
    }
    return wrong.empty() ? 0 : cannot(wrong);
}

int bench(CviModel &model, const std::vector<float> &known, long runs) {
    std::vector<double> times;
    std::vector<float> got;
    for (long i = -(runs / 10) - 1; i < runs; ++i) {
        const auto start = std::chrono::steady_clock::now();
        const std::string wrong = infer(model, known.data(), got);
        const std::chrono::duration<double, std::milli> taken = std::chrono::steady_clock::now() - start;
        if (!wrong.empty()) {
            return cannot(wrong);
        }
        if (i >= 0) {
            times.push_back(taken.count());
        }
    }
    std::sort(times.begin(), times.end());
    std::printf("bench n %zu min %.3f ms median %.3f ms max %.3f ms, quantising and dequantising included\n",
                times.size(), times.front(), times[times.size() / 2], times.back());
    return 0;
}

/* Returns how many words an option takes with its values, or 0 for one that is wrong. */
int take(Arguments &arguments, int left, char **words) {
    const std::string option = words[0];
    if (option == "--run" && left > 2) {
        arguments.run_input = words[1];
        arguments.run_output = words[2];
        return 3;
    }
    if (left < 2) {
        return 0;
    }
    char *end = nullptr;
    if (option == "--model") {
        arguments.model = words[1];
    } else if (option == "--vectors") {
        arguments.vectors = words[1];
    } else if (option == "--tolerance") {
        arguments.tolerance = std::strtod(words[1], &end);
        return *end == '\0' && arguments.tolerance >= 0.0 ? 2 : 0;
    } else if (option == "--bench") {
        arguments.bench = std::strtol(words[1], &end, 10);
        return *end == '\0' && arguments.bench > 0 ? 2 : 0;
    } else {
        return 0;
    }
    return 2;
}

}  // namespace

int main(int argc, char **argv) {
    Arguments arguments;
    for (int i = 1; i < argc;) {
        const int taken = take(arguments, argc - i, argv + i);
        if (taken == 0) {
            return cannot(std::string(argv[i]) + ": no such option, or its value is missing or wrong; see README.md");
        }
        i += taken;
    }
    CviModel model;
    std::string wrong = model.open(arguments.model, anynpu_inputs, ANYNPU_INPUTS, anynpu_outputs, ANYNPU_OUTPUTS);
    if (!wrong.empty()) {
        return cannot(wrong);
    }
    std::printf("model %s\n%s", ANYNPU_FINGERPRINT, model.describe().c_str());
    if (!arguments.run_input.empty()) {
        return run_once(model, arguments);
    }
    std::vector<float> known;
    wrong = anynpu::read_floats(arguments.vectors, ANYNPU_VECTORS * (input_values() + output_values()), known);
    if (!wrong.empty()) {
        return cannot(wrong);
    }
    return arguments.bench > 0 ? bench(model, known, arguments.bench) : self_test(model, known, arguments.tolerance);
}
