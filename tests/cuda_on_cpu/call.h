// Kernels by name, called with arguments of 64 bits each.
#pragma once
#include <string>
#include <unordered_map>
#include <utility>

#include "shim.h"

template <auto kernel> struct Call;
template <class... A, void (*kernel)(A...)> struct Call<kernel> {
    static const size_t count = sizeof...(A);
    template <size_t... I> static void with(const uint64_t *words, std::index_sequence<I...>) {
        static_assert(((sizeof(A) == 8) && ...), "arguments of kernels have 64 bits");
        kernel(from_bits<A>(words[I])...);
    }
    static void run(const uint64_t *words) { with(words, std::index_sequence_for<A...>{}); }
};

struct Kernel {
    void (*run)(const uint64_t *);
    size_t arguments;
};
using KernelTable = std::unordered_map<std::string, Kernel>;
