// The few features of CUDA C++ that the kernels use, for g++: each CUDA thread is a fiber, see runner.cpp.
#pragma once
#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define __device__
#define __global__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __restrict__
// Blocks run one after the other, so one copy is enough; the section lets the runner spoil it before each block.
#define __shared__ static __attribute__((section("cuda_shared")))

struct Dim3 {
    unsigned int x, y, z;
};
extern Dim3 threadIdx, blockIdx, blockDim, gridDim;

// Suspends the calling fiber until all threads of the block, or the lanes of `mask` in its warp, have come here.
void block_barrier();
// Each lane gives a value; returns those of all lanes of the warp.
const uint64_t *warp_exchange(unsigned int mask, uint64_t value, int operation);

inline void __syncthreads() { block_barrier(); }
inline void __threadfence() {}

template <class T> uint64_t to_bits(T value) {
    uint64_t bits = 0;
    memcpy(&bits, &value, sizeof value);
    return bits;
}
template <class T> T from_bits(uint64_t bits) {
    T value;
    memcpy(&value, &bits, sizeof value);
    return value;
}
inline unsigned int lane_of_thread() { return threadIdx.x & 31; }

inline void __syncwarp(unsigned int mask = 0xFFFFFFFFu) { warp_exchange(mask, 0, 1); }
inline unsigned int __ballot_sync(unsigned int mask, int predicate) {
    const uint64_t *all = warp_exchange(mask, predicate != 0, 2);
    unsigned int found = 0;
    for (int lane = 0; lane < 32; lane++)
        if (mask >> lane & 1 && all[lane]) found |= 1u << lane;
    return found;
}
template <class T> T __shfl_sync(unsigned int mask, T value, int source) {
    return from_bits<T>(warp_exchange(mask, to_bits(value), 3)[source & 31]);
}
template <class T> T __shfl_up_sync(unsigned int mask, T value, unsigned int delta) {
    const uint64_t *all = warp_exchange(mask, to_bits(value), 4);
    return lane_of_thread() < delta ? value : from_bits<T>(all[lane_of_thread() - delta]);
}
template <class T> T __shfl_xor_sync(unsigned int mask, T value, int lanes) {
    return from_bits<T>(warp_exchange(mask, to_bits(value), 5)[lane_of_thread() ^ lanes]);
}

// Fibers do not run at the same time, so plain reads and writes are atomic.
template <class T, class V> T atomicAdd(T *at, V value) {
    T before = *at;
    *at = (T)(before + (T)value);
    return before;
}
template <class T, class V> T atomicMax(T *at, V value) {
    T before = *at;
    if ((T)value > before) *at = (T)value;
    return before;
}
template <class T, class V> T atomicMin(T *at, V value) {
    T before = *at;
    if ((T)value < before) *at = (T)value;
    return before;
}
template <class T, class V> T atomicOr(T *at, V value) {
    T before = *at;
    *at = before | (T)value;
    return before;
}
template <class T, class V, class W> T atomicCAS(T *at, V compare, W value) {
    T before = *at;
    if (before == (T)compare) *at = (T)value;
    return before;
}
template <class T, class V> T atomicExch(T *at, V value) {
    T before = *at;
    *at = (T)value;
    return before;
}

inline int __popc(unsigned int x) { return __builtin_popcount(x); }
inline int __popcll(unsigned long long x) { return __builtin_popcountll(x); }
inline int __clz(unsigned int x) { return x ? __builtin_clz(x) : 32; }
inline int __clzll(unsigned long long x) { return x ? __builtin_clzll(x) : 64; }
inline int __ffsll(unsigned long long x) { return __builtin_ffsll(x); }
inline unsigned int __brev(unsigned int x) {
    unsigned int y = 0;
    for (int i = 0; i < 32; i++) y |= (x >> i & 1u) << (31 - i);
    return y;
}
inline unsigned int __float_as_uint(float x) { return (unsigned int)to_bits(x); }
inline float __uint_as_float(unsigned int x) { return from_bits<float>(x); }
inline int __float2int_rn(float x) { return (int)rintf(x); }
// Compiled with -ffp-contract=off: nothing is fused but what says so.
inline float __fmul_rn(float a, float b) { return a * b; }
inline float __fadd_rn(float a, float b) { return a + b; }
inline float __fsub_rn(float a, float b) { return a - b; }
inline float __fdiv_rn(float a, float b) { return a / b; }
inline float __fmaf_rn(float a, float b, float c) { return fmaf(a, b, c); }
inline double __dmul_rn(double a, double b) { return a * b; }
inline double __dadd_rn(double a, double b) { return a + b; }
inline double __dsub_rn(double a, double b) { return a - b; }
inline double __ddiv_rn(double a, double b) { return a / b; }
inline double __dsqrt_rn(double a) { return sqrt(a); }
template <class T> T min(T a, T b) { return b < a ? b : a; }
template <class T> T max(T a, T b) { return a < b ? b : a; }
