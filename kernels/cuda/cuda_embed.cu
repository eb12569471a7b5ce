/* Rows of a table by id, and the gradient back into the table. Both move each row once; ids are
 * not known on the host, so an id outside the table gives a row of NaN, which no loss survives.
 * Backward: one block owns one distinct id. It finds the rows that name the id by scanning all ids
 * (n_row^2 comparisons of 4 bytes from L2: 1 ms at 64 k rows, no sorting, no scratch) and adds
 * them in row order, so the sum has the bits of the plain loop. */
#include "kernels/cuda/cuda_dispatch.cuh"

enum { COPY_BLOCK = 256, SCAN_BLOCK = 256, SCAN_EACH = 8, SCAN_TILE = SCAN_BLOCK * SCAN_EACH };

/* unit: 16 bytes of a row, or one element. */
template <class unit>
__global__ void embed_rows(const int32_t *ids, const unit *table, unit *out, int64_t n_vocab,
                           int64_t width) {
    int64_t r = blockIdx.x, id = ids[r];
    bool valid = id >= 0 && id < n_vocab;
    unit nan;
    memset(&nan, 0xff, sizeof nan);
    for (int64_t c = threadIdx.x; c < width; c += blockDim.x)
        out[r * width + c] = valid ? table[id * width + c] : nan;
}

template <class unit>
static void launch_embed(struct backend *be, const struct embed_args *a, int64_t width) {
    int64_t n_row = a->out.shape[0];
    CUDA_LAUNCH(embed_rows<unit>, (unsigned)n_row, block_for(width, COPY_BLOCK), 0, cuda_stream(be),
                a->ids, (const unit *)a->table.data, (unit *)a->out.data, a->table.shape[0], width);
}

/* The rows among tile..tile + SCAN_TILE, from `first` on, whose id is `id`: their offsets in the
 * tile, in order; returns their number. */
static __device__ int find_rows(const int32_t *ids, int32_t id, int64_t first, int64_t tile,
                                int64_t n_row, uint16_t *found, int *warp_count) {
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32, mask = 0;
    int64_t mine = tile + threadIdx.x * SCAN_EACH;
#pragma unroll
    for (int k = 0; k < SCAN_EACH; k++)
        mask |= (mine + k >= first && mine + k < n_row && ids[mine + k] == id) << k;
    int count = __popc(mask), before = count;
    for (int d = 1; d < 32; d *= 2) {
        int other = __shfl_up_sync(~0u, before, d);
        before += lane >= d ? other : 0;
    }
    if (lane == 31)
        warp_count[warp] = before;
    __syncthreads(); /* and the list of the tile before has been read */
    int total = 0;
    before -= count;
    for (int w = 0; w < SCAN_BLOCK / 32; w++) {
        before += w < warp ? warp_count[w] : 0;
        total += warp_count[w];
    }
    for (; mask; mask &= mask - 1)
        found[before++] = (uint16_t)(threadIdx.x * SCAN_EACH + __ffs(mask) - 1);
    __syncthreads();
    return total;
}

/* Does a row before r name the same id? Then that row's block does the work. The two flags take
 * turns, so that nobody sets one that others have yet to read. */
static __device__ bool seen_before(const int32_t *ids, int32_t id, int64_t r, int *flag) {
    if (threadIdx.x < 2)
        flag[threadIdx.x] = 0;
    __syncthreads();
    for (int64_t tile = 0, turn = 0; tile < r; tile += SCAN_TILE, turn ^= 1) {
        bool hit = false;
#pragma unroll
        for (int k = 0; k < SCAN_EACH; k++) {
            int64_t i = tile + k * SCAN_BLOCK + threadIdx.x;
            hit |= i < r && ids[i] == id;
        }
        if (hit)
            flag[turn] = 1; /* all who write it write the same */
        __syncthreads();
        if (flag[turn])
            return true;
    }
    return false;
}

template <class T, int N>
__global__ void __launch_bounds__(SCAN_BLOCK, 4)
    embed_gradient(const int32_t *ids, const T *d_out, float *d_table, int64_t n_row,
                   int64_t n_vocab, int64_t width) {
    SHARED_ARRAY(uint16_t, found, SCAN_TILE);
    SHARED_ARRAY(int, warp_count, SCAN_BLOCK / 32);
    SHARED_ARRAY(int, flag, 2);
    int64_t r = blockIdx.x, c = ((int64_t)blockIdx.y * SCAN_BLOCK + threadIdx.x) * N;
    int32_t id = ids[r];
    if (id < 0 || id >= n_vocab || seen_before(ids, id, r, flag))
        return;
    bool mine = c < width;
    float sum[N] = {}, *to = d_table + id * width + c;
    if (mine)
        load_vec<float, N>(sum, to);
    for (int64_t tile = r / SCAN_TILE * SCAN_TILE; tile < n_row; tile += SCAN_TILE) {
        int n = find_rows(ids, id, r, tile, n_row, found, warp_count);
        const T *from = d_out + tile * width + c;
        if (mine)
#pragma unroll 4
            for (int i = 0; i < n; i++) {
                float x[N];
                load_vec<T, N>(x, from + found[i] * width);
#pragma unroll
                for (int k = 0; k < N; k++)
                    sum[k] += x[k];
            }
    }
    if (mine)
        store_vec<float, N>(to, sum);
}

static enum status check(const char *op, const struct embed_args *a) {
    TRY(cuda_check_dtype(op, a->out.dtype));
    if (a->table.shape[1] != a->out.shape[1])
        return status_fail(STATUS_FAILED, "%s: rows of %lld from a table of width %lld", op,
                           (long long)a->out.shape[1], (long long)a->table.shape[1]);
    return STATUS_OK;
}

extern "C" enum status cuda_embed(struct backend *be, const struct embed_args *a) {
    int64_t width = a->out.shape[1];
    TRY(check("embed", a));
    if (!a->out.shape[0])
        return STATUS_OK;
    int n = vec_for(a->out.dtype, {width}, (char *)a->table.data, (char *)a->out.data);
    if (n > 1)
        launch_embed<uint4>(be, a, width / n);
    else if (a->out.dtype == DTYPE_F32)
        launch_embed<uint32_t>(be, a, width);
    else
        launch_embed<uint16_t>(be, a, width);
    return cuda_launch_status(be, "embed");
}

extern "C" enum status cuda_embed_bwd(struct backend *be, const struct embed_args *a) {
    int64_t n_row = a->out.shape[0], width = a->out.shape[1];
    TRY(check("embed_bwd", a));
    if (!n_row)
        return STATUS_OK;
    int n = vec_for(a->out.dtype, {width}, (char *)a->table.data, (char *)a->out.data);
    WITH_VEC(a->out.dtype, n, T, N, {
        dim3 grid((unsigned)n_row, (unsigned)divide_up(width, SCAN_BLOCK * N));
        CUDA_LAUNCH((embed_gradient<T, N>), grid, SCAN_BLOCK, 0, cuda_stream(be), a->ids,
                    (const T *)a->out.data, (float *)a->table.data, n_row, a->table.shape[0],
                    width);
    });
    return cuda_launch_status(be, "embed_bwd");
}
