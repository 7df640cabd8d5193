// Decode attention at 16 bit for sm_90. See decode_bulk.cuh.
#include "decode_bulk.cuh"

// CTAs: of a multiprocessor. One of its own has registers for a warp that finishes heads.
#define EBB_DECODE_BULK_OF(NAME, D, STAGES, CTAS, ANY)                             \
  EBB_KERNEL_EARLY(NAME, ebb::BulkDecodeParams,                                    \
                   (ebb::BulkDecode<D, STAGES, CTAS == 1, ANY>::kThreads), CTAS) { \
    EBB_DYNAMIC_SHARED(shared);                                                    \
    ebb::BulkDecode<D, STAGES, CTAS == 1, ANY> kernel(p, shared);                  \
    kernel.run();                                                                  \
  }
#define EBB_DECODE_BULK(NAME, D, STAGES, CTAS) EBB_DECODE_BULK_OF(NAME, D, STAGES, CTAS, false)

EBB_DECODE_BULK(decode_bulk_d128_s3, 128, 3, 2)
EBB_DECODE_BULK(decode_bulk_d128_s2, 128, 2, 3)
EBB_DECODE_BULK(decode_bulk_d128_s6, 128, 6, 1)
EBB_DECODE_BULK(decode_bulk_d64_s8, 64, 8, 3)
EBB_DECODE_BULK(decode_bulk_d64_s24, 64, 24, 1)

// Scores of any kind (scores.cuh).
EBB_DECODE_BULK_OF(decode_bulk_d128_s2_any, 128, 2, 3, true)
EBB_DECODE_BULK_OF(decode_bulk_d128_s6_any, 128, 6, 1, true)
EBB_DECODE_BULK_OF(decode_bulk_d64_s8_any, 64, 8, 3, true)
EBB_DECODE_BULK_OF(decode_bulk_d64_s24_any, 64, 24, 1, true)

// Grid: (q_heads * head_dim / 256, sequences).
#define EBB_DECODE_MERGE(NAME, D, ANY) \
  EBB_KERNEL_EARLY(NAME, ebb::DecodeMergeParams, 256, 4) { ebb::merge_units<D, ANY>(p); }

EBB_DECODE_MERGE(decode_merge_d128, 128, false)
EBB_DECODE_MERGE(decode_merge_d64, 64, false)
EBB_DECODE_MERGE(decode_merge_d128_any, 128, true)
EBB_DECODE_MERGE(decode_merge_d64_any, 64, true)
