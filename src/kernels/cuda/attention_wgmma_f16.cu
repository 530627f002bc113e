// The warpgroup attention kernels for f16; a file of their own, because they take long to compile.
#include "attention_wgmma_host.cuh"

namespace potato::cuda {

template bool wgmma_attention_fits(const AttentionArgs<__half>&, const Stream&);
template void wgmma_attention_forward(AttentionArgs<__half>, const AttentionShape&, Stream&);
template void wgmma_attention_backward(AttentionArgs<__half>, const AttentionShape&, Stream&);

}  // namespace potato::cuda
