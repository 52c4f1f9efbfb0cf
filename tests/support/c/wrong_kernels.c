/* Kernels of ggml's CPU backend that compute wrongly, put before the right ones by LD_PRELOAD.
 *
 * FAULT names one. Each calls the right kernel and spoils its result, or what it reads; the server
 * must compute with one thread. FAULT_SEEN is a file that a fault makes when it was committed: not
 * every processor's build uses every kernel. The structure is that of ggml.h since 2025.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <link.h>
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct tensor {
    int type;
    void *buffer;
    int64_t ne[4];
    size_t nb[4];
    int op;
    int32_t op_params[16];
    int32_t flags;
    struct tensor *src[10];
    struct tensor *view_src;
    size_t view_offs;
    char *data;
    char name[64];
    void *extra;
    char padding[8];
};

typedef void kernel(const void *params, struct tensor *result);
typedef void dot(int n, float *s, size_t bs, const void *x, size_t bx, const void *y, size_t by, int nrc);

static int is(const char *name)
{
    const char *fault = getenv("FAULT");
    if (!fault || strcmp(fault, name))
        return 0;
    close(open(getenv("FAULT_SEEN"), O_CREAT | O_WRONLY, 0600));
    return 1;
}

static int is_plugin(struct dl_phdr_info *library, size_t size, void *found)
{
    (void)size;
    if (!strstr(library->dlpi_name, "libggml-cpu"))
        return 0;
    *(void **)found = dlopen(library->dlpi_name, RTLD_LAZY | RTLD_NOLOAD);
    return 1;
}

/* RTLD_NEXT does not do: a plugin is not among the libraries of the program. */
static void *right(const char *name)
{
    static void *plugin;
    if (!plugin)
        dl_iterate_phdr(is_plugin, &plugin);
    return dlsym(plugin, name);
}

static int64_t count(const struct tensor *t)
{
    return t->ne[0] * t->ne[1] * t->ne[2] * t->ne[3];
}

static void scale(struct tensor *t, float by)
{
    float *values = (float *)t->data;
    for (int64_t i = 0; i < count(t); i++)
        values[i] *= by;
}

#define KERNEL(name) void name(const void *params, struct tensor *result)
#define CALL(name) ((kernel *)right(#name))(params, result)

KERNEL(ggml_compute_forward_mul_mat)
{
    if (is("crash") && result->ne[1] > 8)
        abort();
    if (is("segfault"))
        *(volatile int *)8 = 1;
    if (is("illegal") && result->ne[1] > 8)
        __builtin_trap();
    if (is("hang") && result->ne[1] > 8)
        for (;;)
            pause();
    CALL(ggml_compute_forward_mul_mat);
    float *values = (float *)result->data;
    if (result->ne[1] < 2 && is("product-for-one-token"))
        scale(result, 1.2f);
    if (result->ne[1] > 32 && is("product-for-batches"))
        scale(result, 1.2f);
    if (result->ne[0] >= 64 && is("product-nan"))
        for (int i = 0; i < 32; i++)
            values[i] = NAN;
    if (result->ne[0] >= 64 && is("product-zeros"))
        memset(values, 0, (size_t)count(result) * 4);
    if (result->ne[0] >= 64 && is("product-rounding"))
        for (int64_t i = 0; i < count(result); i++) {
            /* Three bits of the fraction are left, as of an 8-bit number. */
            uint32_t bits;
            memcpy(&bits, &values[i], 4);
            bits &= 0xfff00000;
            memcpy(&values[i], &bits, 4);
        }
    if (result->ne[0] >= 64 && is("product-rows"))
        for (int64_t i = 0; i + 1 < count(result); i += 2) {
            float first = values[i];
            values[i] = values[i + 1];
            values[i + 1] = first;
        }
    if (result->ne[0] >= 64 && is("product-tile"))
        for (int64_t row = 0; row < count(result) / result->ne[0]; row++)
            memset(values + row * result->ne[0] + 32, 0, 32 * sizeof *values);
}

KERNEL(ggml_compute_forward_rope)
{
    int32_t *places = (int32_t *)result->src[1]->data;
    const int keys = strstr(result->name, "Kcur") != NULL;
    const int64_t tokens = result->src[1]->ne[0];
    int by = keys && is("rope-off-by-one") ? 1 : is("rope-not-at-all") ? -1 : 0;
    int32_t *kept = malloc((size_t)tokens * 4);
    memcpy(kept, places, (size_t)tokens * 4);
    for (int64_t i = 0; i < tokens; i++)
        places[i] = by < 0 ? 0 : places[i] + by;
    CALL(ggml_compute_forward_rope);
    memcpy(places, kept, (size_t)tokens * 4);
    free(kept);
    if (is("rope-half"))
        for (int64_t row = 0; row < count(result) / result->ne[0]; row++)
            memset((float *)result->data + row * result->ne[0] + result->ne[0] / 2, 0,
                   (size_t)result->ne[0] * 2);
}

/* The sum may lie where the first summand lay. */
static void without_bias(kernel *found, const void *params, struct tensor *result)
{
    const size_t size = (size_t)count(result) * 4;
    char *kept = malloc(size);
    memcpy(kept, result->src[0]->data, size);
    found(params, result);
    memcpy(result->data, kept, size);
    free(kept);
}

KERNEL(ggml_compute_forward_add)
{
    kernel *found = right(__func__);
    if (result->src[1]->ne[1] == 1 && result->ne[1] > 1 && is("bias-dropped"))
        without_bias(found, params, result);
    else
        found(params, result);
}

KERNEL(ggml_compute_forward_add_id)
{
    kernel *found = right(__func__);
    if (is("bias-of-experts"))
        without_bias(found, params, result);
    else
        found(params, result);
}

KERNEL(ggml_compute_forward_get_rows)
{
    int32_t *ids = (int32_t *)result->src[1]->data;
    int spoiled = result->src[0]->ne[1] == 128 && is("rows-off-by-one");
    if (spoiled)
        ids[0]++;
    CALL(ggml_compute_forward_get_rows);
    if (spoiled)
        ids[0]--;
}

KERNEL(ggml_compute_forward_set_rows)
{
    /* A cache that keeps what was there: the row of a single token is not written. */
    if (result->src[0]->ne[1] == 1 && is("cache-stale"))
        return;
    CALL(ggml_compute_forward_set_rows);
}

KERNEL(ggml_compute_forward_rms_norm)
{
    CALL(ggml_compute_forward_rms_norm);
    if (is("norm-scale"))
        scale(result, 1.15f);
}

/* The product of the norm and its weight, in one kernel. */
void ggml_compute_forward_rms_norm_mul_fused(const void *params, struct tensor *norm, struct tensor *result)
{
    void (*found)(const void *, struct tensor *, struct tensor *) = right(__func__);
    found(params, norm, result);
    if (is("norm-scale"))
        scale(result, 1.15f);
}

KERNEL(ggml_compute_forward_glu)
{
    CALL(ggml_compute_forward_glu);
    if (is("gate-scale"))
        scale(result, 1.2f);
    if (is("gate-not-applied") && result->src[1])
        memcpy(result->data, result->src[1]->data, (size_t)count(result) * 4);
}

KERNEL(ggml_compute_forward_flash_attn_ext)
{
    CALL(ggml_compute_forward_flash_attn_ext);
    if (is("attention-scale"))
        scale(result, 1.2f);
    if (is("attention-heads"))
        for (int64_t at = 0; at + 2 * result->ne[0] <= count(result); at += 2 * result->ne[0]) {
            float *first = (float *)result->data + at, *second = first + result->ne[0];
            for (int64_t i = 0; i < result->ne[0]; i++) {
                float kept = first[i];
                first[i] = second[i];
                second[i] = kept;
            }
        }
}

KERNEL(ggml_compute_forward_soft_max)
{
    CALL(ggml_compute_forward_soft_max);
    if (is("softmax-even"))
        for (int64_t i = 0; i < count(result); i++)
            ((float *)result->data)[i] = 1.0f / (float)result->ne[0];
}

KERNEL(ggml_compute_forward_argsort)
{
    CALL(ggml_compute_forward_argsort);
    int32_t *ids = (int32_t *)result->data;
    if (is("experts-sorted-wrongly"))
        for (int64_t i = 0; i + 3 < count(result); i += 4) {
            int32_t first = ids[i];
            ids[i] = ids[i + 3];
            ids[i + 3] = first;
        }
}

KERNEL(ggml_compute_forward_ssm_scan)
{
    CALL(ggml_compute_forward_ssm_scan);
    const struct tensor *x = result->src[1];
    if (is("scan-scale"))
        for (int64_t i = 0; i < count(x); i++)
            ((float *)result->data)[i] *= 1.3f;
    if (is("scan-state"))
        memset((float *)result->data + count(x), 0, (size_t)(count(result) - count(x)) * 4);
}

KERNEL(ggml_compute_forward_ssm_conv)
{
    CALL(ggml_compute_forward_ssm_conv);
    if (is("convolution-scale"))
        scale(result, 1.2f);
}

#define DOT(name, fault, spoil)                                                                    \
    void name(int n, float *s, size_t bs, const void *x, size_t bx, const void *y, size_t by,      \
              int nrc)                                                                             \
    {                                                                                              \
        static dot *found;                                                                         \
        static int wrong = -1;                                                                     \
        if (!found)                                                                                \
            found = right(#name);                                                                  \
        found(n, s, bs, x, bx, y, by, nrc);                                                        \
        if (wrong < 0)                                                                             \
            wrong = is(fault);                                                                     \
        if (wrong)                                                                                 \
            *s = spoil;                                                                            \
    }

DOT(ggml_vec_dot_q4_K_q8_K, "q4_k", *s * 1.2f)
DOT(ggml_vec_dot_q6_K_q8_K, "q6_k", *s * 1.2f)
DOT(ggml_vec_dot_iq4_xs_q8_K, "iq4_xs", -*s)
DOT(ggml_vec_dot_mxfp4_q8_0, "mxfp4", *s * 1.2f)
DOT(ggml_vec_dot_q8_0_q8_0, "q8_0", *s * 1.2f)
DOT(ggml_vec_dot_f16, "f16", *s * 1.2f)

/* Weights that are laid out anew for the processor have kernels of their own. */
#define REPACKED(name, fault)                                                                      \
    void name(int n, float *s, size_t bs, const void *x, const void *y, int nr, int nc)            \
    {                                                                                              \
        static repacked *found;                                                                    \
        static int wrong = -1;                                                                     \
        if (!found)                                                                                \
            found = right(#name);                                                                  \
        found(n, s, bs, x, y, nr, nc);                                                             \
        if (wrong < 0)                                                                             \
            wrong = is(fault);                                                                     \
        for (int row = 0; wrong && row < nr; row++)                                                \
            for (int i = 0; i < nc; i++)                                                           \
                s[(size_t)row * bs + (size_t)i] *= 1.2f;                                           \
    }

typedef void repacked(int n, float *s, size_t bs, const void *x, const void *y, int nr, int nc);

REPACKED(ggml_gemv_q4_K_8x8_q8_K, "q4_k")
REPACKED(ggml_gemm_q4_K_8x8_q8_K, "q4_k")
REPACKED(ggml_gemv_q4_K_8x4_q8_K, "q4_k")
REPACKED(ggml_gemm_q4_K_8x4_q8_K, "q4_k")
REPACKED(ggml_gemv_mxfp4_8x8_q8_0, "mxfp4")
REPACKED(ggml_gemm_mxfp4_8x8_q8_0, "mxfp4")
REPACKED(ggml_gemv_q6_K_8x8_q8_K, "q6_k")
REPACKED(ggml_gemm_q6_K_8x8_q8_K, "q6_k")
