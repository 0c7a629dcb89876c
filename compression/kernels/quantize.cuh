// Values of float32, float16 and bfloat16, and their codes under a bound (docs/wire-format.md, "Codes").
#pragma once
#include "common.cuh"

__device__ inline float from_float16(u32 half) {
    u32 sign = (half & 0x8000u) << 16, exponent = half >> 10 & 31, fraction = half & 0x3FFu;
    if (exponent == 31) return __uint_as_float(sign | 0x7F800000u | fraction << 13);
    if (exponent) return __uint_as_float(sign | (exponent + 112) << 23 | fraction << 13);
    return __uint_as_float(sign | __float_as_uint(__fmul_rn((float)fraction, 5.9604644775390625e-8f)));  // 2^-24
}
// To nearest, half to even; of no NaN.
__device__ inline u32 to_float16(float value) {
    u32 bits = __float_as_uint(value), sign = bits >> 16 & 0x8000u, rest = bits & 0x7FFFFFFFu;
    if (rest >= 0x477FF000u) return sign | 0x7C00u;
    if (rest < 0x38800000u)  // subnormal: a multiple of 2^-24
        return sign | (u32)__float2int_rn(__fmul_rn(__uint_as_float(rest), 16777216.0f));
    rest += 0xFFFu + (rest >> 13 & 1);
    return sign | (rest - 0x38000000u) >> 13;
}
__device__ inline float from_bfloat16(u32 half) { return __uint_as_float(half << 16); }
__device__ inline u32 to_bfloat16(float value) {
    u32 bits = __float_as_uint(value);
    return (bits + 0x7FFFu + (bits >> 16 & 1)) >> 16;
}

template <int DTYPE> struct Type {
    typedef u16 Bits;
    static __device__ float widen(u32 bits) { return DTYPE == FLOAT16 ? from_float16(bits) : from_bfloat16(bits); }
    static __device__ u32 narrow(float value) { return DTYPE == FLOAT16 ? to_float16(value) : to_bfloat16(value); }
};
template <> struct Type<FLOAT32> {
    typedef u32 Bits;
    static __device__ float widen(u32 bits) { return __uint_as_float(bits); }
    static __device__ u32 narrow(float value) { return __float_as_uint(value); }
};

// A value rounded at random to one of its two neighbouring codes, where that holds it ("Stochastic rounding").
__device__ inline float dithered(float x, const State &grid, u64 seed, u64 number) {
    u64 z = seed + (number + 1) * 0x9E3779B97F4A7C15ull;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
    float uniform = __fmul_rn((float)(u32)((z ^ (z >> 31)) >> 40), 5.9604644775390625e-8f);
    float scaled = __fmul_rn(x, grid.inverse), whole = floorf(scaled);
    float up = uniform < __fsub_rn(scaled, whole) ? 1.0f : 0.0f;
    float rounded = __fmul_rn(__fadd_rn(whole, up), grid.step);
    bool held = fabsf(__fsub_rn(x, rounded)) <= grid.whole_limit && __float_as_uint(x) != 0x80000000u;
    return held ? rounded : x;
}

// The code of value i of a section, 0 where none up to `top` holds it; a value that is not held is a patch.
template <int DTYPE>
__device__ inline int quantize(const Section &s, const State &grid, u32 i, float top, bool &held) {
    u32 bits = ((const typename Type<DTYPE>::Bits *)s.values)[i];
    float x = Type<DTYPE>::widen(bits), value = x;
    if (s.stochastic) value = dithered(x, grid, s.seed, (u64)s.first_value + i);
    float code = rintf(__fmul_rn(value, grid.inverse)), decoded = __fmul_rn(code, grid.step);
    // NaN fails all comparisons. Only a held code is converted: others may not fit an int.
    held = fabsf(code) <= top && fabsf(__fsub_rn(value, decoded)) <= grid.limit &&
           __float_as_uint(value) != 0x80000000u;
    if (DTYPE != FLOAT32 && held) {  // what it rounds to must be within the bound too
        double error = __dsub_rn((double)x, (double)Type<DTYPE>::widen(Type<DTYPE>::narrow(decoded)));
        held = fabs(error) <= (double)grid.whole_limit;
    }
    return held ? __float2int_rn(code) : 0;
}
const float TOP_PACKED = 4194304.0f;  // 2^22
