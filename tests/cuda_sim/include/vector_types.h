/* Stand-in for the CUDA toolkit's header: vectors of the built-in types; valid C. */
#ifndef REGROUP_CUDA_SIM_VECTOR_TYPES_H
#define REGROUP_CUDA_SIM_VECTOR_TYPES_H

#ifdef __cplusplus
#define SIM_ALIGN(n) alignas(n)
#else
#define SIM_ALIGN(n) _Alignas(n)
#endif

#define SIM_VECTORS(type, name, align2, align4)                                                    \
    struct name##1 {                                                                               \
        type x;                                                                                    \
    };                                                                                             \
    struct name##2 {                                                                               \
        SIM_ALIGN(align2) type x;                                                                  \
        type y;                                                                                    \
    };                                                                                             \
    struct name##3 {                                                                               \
        type x, y, z;                                                                              \
    };                                                                                             \
    struct name##4 {                                                                               \
        SIM_ALIGN(align4) type x;                                                                  \
        type y, z, w;                                                                              \
    };                                                                                             \
    typedef struct name##1 name##1;                                                                \
    typedef struct name##2 name##2;                                                                \
    typedef struct name##3 name##3;                                                                \
    typedef struct name##4 name##4;

typedef unsigned char sim_uchar;
typedef unsigned short sim_ushort;
typedef unsigned int sim_uint;
typedef unsigned long long sim_ulonglong;
typedef long long sim_longlong;
SIM_VECTORS(signed char, char, 2, 4)
SIM_VECTORS(sim_uchar, uchar, 2, 4)
SIM_VECTORS(short, short, 4, 8)
SIM_VECTORS(sim_ushort, ushort, 4, 8)
SIM_VECTORS(int, int, 8, 16)
SIM_VECTORS(sim_uint, uint, 8, 16)
SIM_VECTORS(sim_longlong, longlong, 16, 16)
SIM_VECTORS(sim_ulonglong, ulonglong, 16, 16)
SIM_VECTORS(float, float, 8, 16)
SIM_VECTORS(double, double, 16, 16)

struct dim3 {
    unsigned int x, y, z;
#ifdef __cplusplus
    constexpr dim3(unsigned int x_ = 1, unsigned int y_ = 1, unsigned int z_ = 1)
        : x(x_), y(y_), z(z_) {
    }
#endif
};
typedef struct dim3 dim3;

#endif
