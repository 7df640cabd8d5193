// Decode attention at 16 bit for sm_90. See decode_bulk.cuh.
#include "decode_bulk.cuh"

// CTAs: of a multiprocessor. One of its own has registers for a warp that finishes heads.
#define EBB_DECODE_BULK(NAME, D, STAGES, CTAS)                                                     \
  EBB_KERNEL_EARLY(NAME, ebb::BulkDecodeParams, (ebb::BulkDecode<D, STAGES, CTAS == 1>::kThreads), \
                   CTAS) {                                                                         \
    EBB_DYNAMIC_SHARED(shared);                                                                    \
    ebb::BulkDecode<D, STAGES, CTAS == 1> kernel(p, shared);                                       \
    kernel.run();                                                                                  \
  }

EBB_DECODE_BULK(decode_bulk_d128_s3, 128, 3, 2)
EBB_DECODE_BULK(decode_bulk_d128_s2, 128, 2, 3)
EBB_DECODE_BULK(decode_bulk_d128_s6, 128, 6, 1)
EBB_DECODE_BULK(decode_bulk_d64_s8, 64, 8, 3)
EBB_DECODE_BULK(decode_bulk_d64_s24, 64, 24, 1)

// Grid: (q_heads * head_dim / 256, sequences).
EBB_KERNEL_EARLY(decode_merge_d128, ebb::DecodeMergeParams, 256, 4) { ebb::merge_units<128>(p); }
EBB_KERNEL_EARLY(decode_merge_d64, ebb::DecodeMergeParams, 256, 4) { ebb::merge_units<64>(p); }
