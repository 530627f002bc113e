// The tensor core attention kernels for fp16; a file of their own, because they take long to compile.
#include "attention_mma.cuh"

namespace potato::cuda {

template void mma_attention_forward(AttentionArgs<__half>, const AttentionShape&, Stream&);
template void mma_attention_backward(AttentionArgs<__half>, const AttentionShape&, Stream&);

}  // namespace potato::cuda
