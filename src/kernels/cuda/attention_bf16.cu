// The tensor core attention kernels for bf16; a file of their own, because they take long to compile.
#include "attention_mma.cuh"

namespace potato::cuda {

template void mma_attention_forward(AttentionArgs<__nv_bfloat16>, const AttentionShape&, Stream&);
template void mma_attention_backward(AttentionArgs<__nv_bfloat16>, const AttentionShape&, Stream&);

}  // namespace potato::cuda
