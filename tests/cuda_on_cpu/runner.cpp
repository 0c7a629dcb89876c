// Runs CUDA kernels on the CPU for tests. A process of its own: the memory of the "device" is its heap, which
// AddressSanitizer watches, and what goes wrong in a kernel ends this process and not the test.
//
// Every CUDA thread is a fiber. One runs until it comes to a barrier or ends, and a warp until all its lanes are at a
// barrier of the block. The order of lanes, of warps, and of the blocks of a grid is drawn from a seed, so that a missing barrier or an
// assumption on the order of blocks shows as another result under another seed.
#include <sanitizer/asan_interface.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <random>
#include <string>
#include <vector>

#include "call.h"

Dim3 threadIdx, blockIdx, blockDim, gridDim;

namespace {

[[noreturn]] void fail(const std::string &problem) {
    fprintf(stderr, "cuda_on_cpu: %s, thread %u of block %u\n", problem.c_str(), threadIdx.x, blockIdx.x);
    _exit(3);
}

const size_t STACK = 128 << 10, PAGE = 4096;
const unsigned MOST_THREADS = 1024;
enum State { READY, AT_BARRIER, IN_WARP, DONE };

struct Fiber {
    void *stack_pointer;
    char *stack;
    State state;
};
struct Warp {
    uint64_t values[2][32];  // in turns: a lane may come to the next exchange while others still read the last one
    unsigned arrived, mask, parity;
    int operation;
};

Fiber fibers[MOST_THREADS];
Warp warps[MOST_THREADS / 32];
unsigned current;
void *scheduler_stack_pointer;
void (*body)(const uint64_t *);
const uint64_t *arguments;

// Saves the registers that a callee must keep on this stack and goes on with those of the other one (System V x86-64).
extern "C" void switch_stacks(void **from, void *to);
asm(R"(
.text
.globl switch_stacks
.type switch_stacks, @function
switch_stacks:
    pushq %rbp
    pushq %rbx
    pushq %r12
    pushq %r13
    pushq %r14
    pushq %r15
    movq %rsp, (%rdi)
    movq %rsi, %rsp
    popq %r15
    popq %r14
    popq %r13
    popq %r12
    popq %rbx
    popq %rbp
    ret
.size switch_stacks, .-switch_stacks
)");

void suspend(State state) {
    Fiber &own = fibers[current];
    own.state = state;
    switch_stacks(&own.stack_pointer, scheduler_stack_pointer);
}

void fiber_main() {
    body(arguments);
    suspend(DONE);
    fail("an ended thread was resumed");
}

void start(Fiber &fiber) {
    if (!fiber.stack) {
        void *memory = mmap(nullptr, STACK + PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (memory == MAP_FAILED || mprotect(memory, PAGE, PROT_NONE)) fail("no memory for a stack");
        fiber.stack = (char *)memory + PAGE;
    }
    // The frame that the thread before it on this stack ended in.
    __asan_unpoison_memory_region(fiber.stack + STACK - PAGE, PAGE);
    void **top = (void **)(fiber.stack + STACK);
    *--top = nullptr;  // a function is entered with a stack that is 8 bytes off a multiple of 16
    *--top = (void *)fiber_main;
    for (int i = 0; i < 6; i++) *--top = nullptr;
    fiber.stack_pointer = top;
    fiber.state = READY;
}

extern "C" char __start_cuda_shared[] __attribute__((weak)), __stop_cuda_shared[] __attribute__((weak));

void run_block(unsigned threads, std::mt19937 &random, bool shuffled) {
    if (__start_cuda_shared) memset(__start_cuda_shared, 0xA5, __stop_cuda_shared - __start_cuda_shared);
    std::vector<unsigned> order(threads / 32), lanes(32);
    for (unsigned w = 0; w < threads / 32; w++) order[w] = w, warps[w] = Warp{};
    for (unsigned i = 0; i < 32; i++) lanes[i] = i;
    for (unsigned i = 0; i < threads; i++) start(fibers[i]);
    for (unsigned left = threads; left;) {
        // A warp runs as far as it can, to its next block barrier, before the next one: what it may do there before
        // others have come so far, it does.
        if (shuffled) std::shuffle(order.begin(), order.end(), random);
        for (unsigned w : order) {
            for (bool moved = true; moved;) {
                moved = false;
                if (shuffled) std::shuffle(lanes.begin(), lanes.end(), random);
                for (unsigned lane : lanes) {
                    unsigned i = 32 * w + lane;
                    if (fibers[i].state != READY) continue;
                    moved = true;
                    current = i;
                    threadIdx = Dim3{i, 0, 0};
                    switch_stacks(&scheduler_stack_pointer, fibers[i].stack_pointer);
                    left -= fibers[i].state == DONE;
                }
            }
        }
        if (!left) break;
        auto has = [&](State state) {
            for (unsigned i = 0; i < threads; i++)
                if (fibers[i].state == state) return threadIdx.x = i, true;
            return false;
        };
        if (has(IN_WARP)) fail("waits for lanes of its warp that do not come");
        if (has(DONE)) fail("ended while others wait at __syncthreads");
        for (unsigned i = 0; i < threads; i++) fibers[i].state = READY;
    }
}

}  // namespace

void block_barrier() { suspend(AT_BARRIER); }

const uint64_t *warp_exchange(unsigned mask, uint64_t value, int operation) {
    unsigned lane = current % 32, first = current - lane;
    Warp &warp = warps[current / 32];
    if (!(mask >> lane & 1)) fail("a lane is not in its own mask");
    if (!warp.arrived) warp.mask = mask, warp.operation = operation;
    if (warp.mask != mask || warp.operation != operation) fail("lanes of a warp meet in different operations");
    uint64_t *values = warp.values[warp.parity];
    values[lane] = value;
    warp.arrived |= 1u << lane;
    if (warp.arrived == mask) {
        warp.arrived = 0;
        warp.parity ^= 1;
        for (unsigned i = 0; i < 32; i++)
            if (mask >> i & 1 && i != lane) fibers[first + i].state = READY;
    } else {
        suspend(IN_WARP);
    }
    return values;
}

const KernelTable &kernels();

namespace {

void get(void *to, size_t size) {
    if (size && fread(to, 1, size, stdin) != size) _exit(0);
}
uint64_t number() {
    uint64_t value;
    get(&value, 8);
    return value;
}
void put(const void *from, size_t size) {
    if (size) fwrite(from, 1, size, stdout);
}

void launch() {
    std::string name(number(), 0);
    get(name.data(), name.size());
    uint64_t blocks_x = number(), blocks_y = number(), threads = number(), seed = number();
    std::vector<uint64_t> words(number());
    get(words.data(), 8 * words.size());
    auto found = kernels().find(name);
    if (found == kernels().end()) fail("no kernel " + name);
    if (found->second.arguments != words.size()) fail("number of arguments of " + name);
    if (!threads || threads % 32 || threads > MOST_THREADS) fail("threads of a block of " + name);
    if (!blocks_x || !blocks_y || blocks_x > 0x7FFFFFFF || blocks_y > 65535) fail("invalid grid of " + name);
    body = found->second.run, arguments = words.data();
    gridDim = Dim3{(unsigned)blocks_x, (unsigned)blocks_y, 1}, blockDim = Dim3{(unsigned)threads, 1, 1};
    std::mt19937 random(seed);
    std::vector<uint64_t> order(blocks_x * blocks_y);
    for (size_t i = 0; i < order.size(); i++) order[i] = i;
    if (seed) std::shuffle(order.begin(), order.end(), random);
    for (uint64_t block : order) {
        blockIdx = Dim3{(unsigned)(block % blocks_x), (unsigned)(block / blocks_x), 0};
        run_block(threads, random, seed != 0);
    }
}

}  // namespace

int main() {
    for (;;) {
        char command;
        get(&command, 1);
        if (command == 'a') {
            size_t size = number();
            void *memory = malloc(size ? size : 1);
            if (!memory) fail("no memory");
            memset(memory, 0xA5, size);
            uint64_t address = (uint64_t)memory;
            put(&address, 8);
        } else if (command == 'f') {
            free((void *)number());
        } else if (command == 'w') {
            uint64_t address = number(), size = number();
            std::vector<char> bytes(size);
            get(bytes.data(), size);
            memcpy((void *)address, bytes.data(), size);
        } else if (command == 'z') {
            uint64_t address = number(), size = number();
            memset((void *)address, 0, size);
        } else if (command == 'r') {
            uint64_t address = number(), size = number();
            std::vector<char> bytes(size);
            memcpy(bytes.data(), (void *)address, size);
            put(bytes.data(), size);
        } else if (command == 'l') {
            launch();
            put("k", 1);
        } else {
            fail("unknown command");
        }
        fflush(stdout);
    }
}
