// What decode attention over shrunk blocks (decode_mixed.cuh) reads, and in what order: a team's
// units and pieces.
//
// A unit (a range of a sequence's blocks, one KV head, a set of columns: pairs of a query row and a
// query head, numbered row * group + head) is the work of a team: of warps that compute, one that
// finds out what to load and, where there is a copy engine, one that gives it what has been found.
// It falls into pieces, shrunk blocks and tiles of 16 tokens of the 16-bit ones, which are dealt to
// as many slots as warps compute (of sixteen columns, pairs of warps: kPair; where this says a
// warp, read a pair, and `warp` counts pairs): the ones that take longest first, each to the slot
// that has least to do. A warp has a slot of each unit, and a ring of its own, which runs on into
// the next unit: no barrier stands between a warp and its loads. Records come in chunks of at most
// 4 KiB of codes (decode_rings.cuh).
#pragma once
#include "../common/kernel.cuh"
#include "../common/pages.cuh"
#include "../common/tensor_copy.cuh"
#include "../formats/formats.cuh"
#include "../formats/pool.cuh"
#include "decode.cuh"

namespace ebb {

struct alignas(64) MixedDecodeParams {
  TensorMap records;  // as of BulkDecodeParams
  DecodeParams decode;
  const uint32_t* levels;    // precision levels, by BlockRef::block; 0: 16 bit
  const PageAtLevel* pages;  // [level - 1][layer * 2 + side]
  uint32_t page_count;       // layers * 2
  uint32_t group;            // query heads of a KV head
  uint32_t level_count;      // of `pages`
  uint32_t reserved;
  uint64_t policy;  // of L2, for what is read of blocks
  ScoreParams scores;
};
static_assert(sizeof(MixedDecodeParams) == 320);

// In place of a format: a tile of a block that is 16 bit as a whole, `[16][head_dim]`.
constexpr uint32_t kTile16 = 15;

// How chunks come to shared memory: by the copy engine (sm_90), or copied by the warp that needs
// them (sm_80 on).
enum class Way { kBulk, kRing };

// SETS: of four columns of a unit, one, two or four. POLAR: whether keys may be polar. ANY: see
// scores.cuh.
template <int D, int STAGES, int SETS, Way WAY, bool POLAR, bool ANY>
struct MixedPieces {
  // A multiprocessor of sm_90 holds two teams, which have nothing to wait for from each other: a
  // warp that has an 8-bit block keeps only few others waiting. They are one CTA: a quarter of a
  // multiprocessor runs every fourth warp of a CTA, so each has three warps that compute and one of
  // the other four, behind them. The sixteen have 128 registers each to begin with; warps that
  // compute take some of the others'. Rings without the copy engine are for sm_80 (164 KiB of
  // shared memory, 2 CTAs of one set) and for sm_86 and sm_89 (100 KiB, one CTA).
  static constexpr uint32_t kTeams = WAY == Way::kBulk ? 2 : 1;
  // of a multiprocessor
  static constexpr uint32_t kCtas = WAY == Way::kRing && SETS == 1 ? 2 : 1;
  // Four sets are more than a warp has registers for: two warps share a ring, a pair, each with
  // half of a block's keys and of its channels.
  static constexpr uint32_t kPair = SETS == 4 ? 2 : 1;
  // of a team, that compute; pairs of them
  static constexpr uint32_t kWarps = WAY == Way::kBulk ? 6 / kPair : SETS == 1 ? 4 : 5;
  static constexpr uint32_t kComputing = kTeams * kWarps * kPair;
  // then those that find, then those that give
  static constexpr uint32_t kThreads = (kComputing + (WAY == Way::kBulk ? 2 : 1) * kTeams) * 32;
  // of a thread, if the copy engine is used
  static constexpr int kRegisters = 128, kComputingRegisters = 152, kOtherRegisters = 56;
  static_assert(WAY == Way::kRing ||
                (kThreads * kRegisters == 65536 &&
                 kComputing * kComputingRegisters + 2 * kTeams * kOtherRegisters <= 65536 / 32));
  // Four warps change their registers at a time.
  static_assert(kComputing % 4 == 0 || WAY == Way::kRing);
  static constexpr int kSteps = D / 16;           // column tiles of keys, row tiles of values
  static constexpr int kTiles = 8;                // row tiles of keys, column tiles of values
  static constexpr uint32_t kRow = 2 * D;         // bytes of a 16-bit row
  static constexpr uint32_t kRecord = 16 * kRow;  // of a 16-bit tile
  static constexpr uint32_t kCodes = 4096;        // bytes of codes in a chunk
  // a kitty25 record; values' zeros, ranges and a chunk
  static constexpr uint32_t kLargest = D == 128 ? 5760 : 512 + kCodes;
  static constexpr uint32_t kStage = (kLargest + 1023) / 1024 * 1024;
  static constexpr uint32_t kRingBytes = STAGES * kStage;
  // of which queries are kept
  static constexpr uint32_t kUnits = WAY == Way::kBulk && SETS != 4 ? 4 : 3;
  // of what there is to do once all have done with a unit
  static constexpr uint32_t kShares = kSteps + 1;
  // of a warp: row tiles of values, of keys
  static constexpr uint32_t kOwnSteps = kSteps / kPair, kOwnTiles = kTiles / kPair;
  // of a unit, at most; of eight of them, the n side of an instruction
  static constexpr uint32_t kColumns = SETS == 4 ? 16 : 8, kOctets = kColumns / 8;
  // of B fragments of queries: where columns hold a head twice, one is kept
  static constexpr uint32_t kFragmentLanes = SETS == 1 ? 16 : 32;
  static constexpr uint32_t kFragments = kOctets * kSteps * kFragmentLanes * 8;
  static constexpr uint32_t kOwn = SETS == 4 ? 0 : kSteps * 128 * SETS;
  // what is left of a unit in a slot
  static constexpr uint32_t kPart = (kSteps * 128 + 64 * kPair) * SETS;

  // Behind what stages can hold: chunks of the warp that have been found and not been given out to
  // be copied, and what it shares with whoever finds and gives them.
  static constexpr uint32_t kQueuePart = 16, kQueue = STAGES * kQueuePart;
  struct RingState {
    uint64_t full[STAGES];    // barriers, if the copy engine is used
    uint32_t info[STAGES];    // what lies in a stage
    uint32_t found, given;    // chunks
    uint32_t taken[kPair];    // chunks, by each warp
    uint32_t ordinal[kPair];  // of the unit under way
    union {
      float most[2][4];    // of two sets: MixedUnits::most
      uint32_t exceeding;  // of a pair: WideBlocks::agree
    };
  };
  static constexpr uint32_t kQueueOffset = kLargest, kStateOffset = kQueueOffset + kQueuePart * 16;
  static_assert(kLargest % 16 == 0 && kStateOffset + sizeof(RingState) <= kStage);

  // Shared memory: the rings of all warps, what each team has, and Arena. Of a team:
  // from 0: parts; uint2 [kUnits][kSteps][kFragmentLanes]: B fragments in fp16
  static constexpr uint32_t kQueryOffset = kWarps * kPart;
  // the same in bf16
  static constexpr uint32_t kQuery16Offset = kQueryOffset + kUnits * kFragments;
  // uint4 [kUnits][SETS][kSteps / 4][32]: the former as lanes need them
  static constexpr uint32_t kOwnOffset = kQuery16Offset + kUnits * kFragments;
  // of more sets than one, of each warp: MixedUnits::Sums [32]; of four, float [4][4]:
  // MixedUnits::Most
  static constexpr uint32_t kSumsOffset = kOwnOffset + kUnits * kOwn;
  static constexpr uint32_t kSums = SETS == 1 ? 0 : SETS == 2 ? 512 : 1024 + 64;
  // of a pair, 16 bit [kWarps][kTiles][kOctets][16 keys][8 columns]: probabilities
  static constexpr uint32_t kProbOffset = kSumsOffset + kWarps * kPair * kSums;
  static constexpr uint32_t kProbs = kPair == 2 ? kTiles * kOctets * 256 : 0;
  // float2 [kWarps][kPair][4 SETS]: what a pair tells each other
  static constexpr uint32_t kExchangeOffset = kProbOffset + kWarps * kProbs;
  static constexpr uint32_t kExchange = kPair == 2 ? kPair * 32 * SETS : 0;
  // float [kUnits][kColumns]: of scores of fp16 queries
  static constexpr uint32_t kScaleOffset = kExchangeOffset + kWarps * kExchange;
  // u8 [kUnits][kColumns]: rows behind that of a column
  static constexpr uint32_t kBehindOffset = kScaleOffset + kUnits * kColumns * 4;
  // u32 [4]: parts left, shares claimed, of them merged
  static constexpr uint32_t kTurnOffset = kBehindOffset + kUnits * kColumns;
  // u32 [kUnits]: ordinal of the unit whose queries are there
  static constexpr uint32_t kBroughtOffset = kTurnOffset + 16;
  // Of units that the finding warp has opened and somebody has yet to finish; a warp may be a queue
  // and a ring of pieces of two chunks and a round of all warps behind, of one piece a unit.
  static constexpr uint32_t kShifts = 128;
  // u8 [kShifts]: the warp that has the first piece of a unit
  static constexpr uint32_t kShiftOffset = kBroughtOffset + kUnits * 4;
  static constexpr uint32_t kTeamBytes = (kShiftOffset + kShifts + 127) / 128 * 128;
  static constexpr uint32_t kTeamsOffset = kTeams * kWarps * kRingBytes;
  static constexpr uint32_t kArenaOffset = kTeamsOffset + kTeams * kTeamBytes;
  static constexpr uint32_t kSharedBytes = kArenaOffset + 16;
  // Of a multiprocessor of sm_90 and of sm_80, which take 1 KiB a CTA, and of one of sm_86.
  static_assert(kCtas * (kSharedBytes + 1024) <= (WAY == Way::kBulk ? 228 : 164) * 1024);
  static_assert(WAY == Way::kBulk || kSharedBytes <= 99 * 1024);
  static_assert(kUnits <= kWarps * kPair);
  static_assert(kSumsOffset % 16 == 0 && kScaleOffset % 16 == 0 && kTurnOffset % 4 == 0);
  static_assert((kQueue / 2 + (STAGES + 1) / 2 + 1) * kWarps < kShifts);
  // The finding warp waits for room for all queues at once, so whoever it waits for must get on
  // with what has been found. A warp that has come to a piece in a later unit waits until every
  // other one has left the units before; those have been told of a piece behind those if this warp
  // has been told of two: of a unit each has a piece before one has a second, and where there are
  // not enough for all, the next unit's go on with those that have none. So two pieces have to fit,
  // of 16 chunks (both sides 16 bit) at most; of them two may have been given, and the finding warp
  // may know of one given one too few (`Rings<kRing>::give`).
  static_assert(2 * (2 * kTiles) - 2 + 1 <= kQueue);
  static constexpr uint32_t kNone = 0xffff;

  const DecodeParams& p;
  const MixedDecodeParams& params;
  // said anew for each block, so that what follows from it is not kept from one to the next
  uint32_t lane;
  const uint32_t team, warp;  // warp: of the team, if it computes; its pair
  const uint32_t mate;        // of its pair
  uint8_t* const shared;      // the team's
  uint32_t taken;             // chunks

  __device__ __forceinline__ explicit MixedPieces(const MixedDecodeParams& params)
      : p(params.decode),
        params(params),
        lane(threadIdx.x % 32),
        // Shuffled, so that the compiler knows that they are all lanes'.
        team(kTeams == 1 ? 0
                         : __shfl_sync(~0u,
                                       computes() ? threadIdx.x / 32 / (kWarps * kPair)
                                                  : threadIdx.x / 32 % kTeams,
                                       0)),
        warp((__shfl_sync(~0u, threadIdx.x / 32, 0) - team * kWarps * kPair) / kPair),
        mate(kPair == 1 ? 0 : __shfl_sync(~0u, threadIdx.x / 32 % kPair, 0)),
        shared(shared_of(team)),
        taken(0) {}

  __device__ __forceinline__ static bool computes() { return threadIdx.x / 32 < kComputing; }
  // Of those that do not compute.
  __device__ __forceinline__ static bool gives() { return threadIdx.x / 32 >= kComputing + kTeams; }
  __device__ __forceinline__ static uint8_t* shared_of(uint32_t team) {
    EBB_DYNAMIC_SHARED(shared);
    return shared + kTeamsOffset + team * kTeamBytes;
  }
  // Stages of a warp of the team, `kStage` apart.
  __device__ __forceinline__ uint8_t* ring_of(uint32_t w) const {
    EBB_DYNAMIC_SHARED(shared);
    return shared + (team * kWarps + w) * kRingBytes;
  }
  __device__ __forceinline__ static RingState& state_of(uint8_t* ring) {
    return *reinterpret_cast<RingState*>(ring + kStateOffset);
  }
  __device__ __forceinline__ RingState& state() const { return state_of(ring_of(warp)); }

  __device__ __forceinline__ bool is_item(uint32_t number) const {
    return number < look_up(p.unit_count) * p.kv_heads;
  }
  // The team's units. Few go to as many multiprocessors.
  __device__ __forceinline__ uint32_t item(uint32_t ordinal) const {
    return blockIdx.x + (ordinal * kTeams + team) * grid_size_here();
  }
  __device__ __forceinline__ uint8_t* stage_at(uint32_t s) const {
    return ring_of(warp) + s * kStage;
  }
  __device__ __forceinline__ uint8_t* part_of(uint32_t w) const { return shared + w * kPart; }
  __device__ __forceinline__ uint8_t* shift_of(uint32_t ordinal) const {
    return shared + kShiftOffset + ordinal % kShifts;
  }
  __device__ __forceinline__ uint32_t left() const { return smem_address(shared + kTurnOffset); }
  __device__ __forceinline__ uint32_t claimed() const {
    return smem_address(shared + kTurnOffset) + 4;
  }
  __device__ __forceinline__ uint32_t merged() const {
    return smem_address(shared + kTurnOffset) + 8;
  }
  __device__ __forceinline__ uint32_t brought(uint32_t ordinal) const {
    return smem_address(shared + kBroughtOffset) + ordinal % kUnits * 4;
  }
  __device__ __forceinline__ uint32_t stage() const { return taken % STAGES; }

  // Queries of a unit: B fragments in fp16 and as they are, and the former as each lane needs them
  // for its own columns.
  __device__ __forceinline__ const uint2* query_of(uint32_t slot) const {
    return reinterpret_cast<const uint2*>(shared + kQueryOffset + slot * kFragments);
  }
  __device__ __forceinline__ const uint2* query16_of(uint32_t slot) const {
    return reinterpret_cast<const uint2*>(shared + kQuery16Offset + slot * kFragments);
  }
  // Which of their lanes has this lane's, which columns 2t and 2t + 1 share where there is one set.
  __device__ __forceinline__ uint32_t fragment_lane() const {
    return SETS == 1 ? lane / 8 * 4 + lane % 4 : lane;
  }
  __device__ __forceinline__ uint8_t* own_of(uint32_t slot, uint32_t set) const {
    return shared + kOwnOffset + slot * kOwn + set * (kOwn / SETS);
  }

  // Rows of the sequence behind that of a lane's column.
  __device__ __forceinline__ uint8_t* behind_of(uint32_t slot) const {
    return shared + kBehindOffset + slot * kColumns;
  }

  // Of scores of a lane's head, where its queries are those in fp16.
  __device__ __forceinline__ float scale_of(uint32_t slot, uint32_t set) const {
    return reinterpret_cast<const float*>(shared +
                                          kScaleOffset)[slot * kColumns + 4 * set + lane % 4];
  }

  // Chunks of a plane of codes.
  template <int Bits>
  __device__ __forceinline__ static constexpr int chunks_at() {
    constexpr int kFull = D * 16 * Bits / static_cast<int>(kCodes);
    return kFull > 1 ? kFull : 1;
  }

  // ---- what there is to load: one warp finds out ----

  // A piece of a unit, the work of one warp: a shrunk block, or a tile of one that is 16 bit. In
  // chunks it lies in the queue of its warp, keys before values.
  //
  // A chunk: x: 16 bytes from the arena's begin; y: further bits of that (4), 16 bytes until the
  // end of its frame if it ends later, else of the chunk (10), 16 bytes of the chunk (10), further
  // bits of z (4), how it is to be copied (4); z: of the rest, in its own frame; w: ordinal of the
  // unit (kNone: there is no more) | K's format << 16 | V's << 20 | tokens from a tile's first to
  // the sequence's end << 24, 31 if there are more. ANY: also how many tokens from its first one
  // the sequence's last row does not see: of a block << 24, of a tile in place of V's format and <<
  // 29.
  static constexpr uint32_t kPartShift = 4, kBytesShift = 14, kRestShift = 24, kHowShift = 28;
  // As it is, from one frame or two; as 16 rows of 16 bit, which lie in one (kv/layout.rs) and come
  // swizzled; not at all, there is no more.
  enum How : uint32_t { kWhole, kDivided, kRows, kNoMore };

  static constexpr uint32_t kHeadShift = 18;
  // Up to 32 blocks of a unit, one for each lane; all else is the same for all.
  struct Batch {
    // the unit's ordinal (kNone: there is none) | kOpens | kIsLong | its KV head << kHeadShift
    uint32_t flags;
    // of the unit; begin: of this batch. ANY: in place of the first column the unit's first token,
    // from its block's
    uint32_t first_block, begin, tokens, columns;
    uint2 ref;
    uint32_t level;
    __device__ __forceinline__ uint32_t ordinal() const { return flags & 0xffff; }
    __device__ __forceinline__ uint32_t head() const { return flags >> kHeadShift; }
  };
  static constexpr uint32_t kOpens = 1 << 16;   // it is the unit's first
  static constexpr uint32_t kIsLong = 1 << 17;  // the unit: its blocks are dealt in turn

  // The unit of an item; past the end one of an earlier step or zero, which nobody looks at: so it
  // can be asked for before it is known whether there is one.
  __device__ __forceinline__ const DecodeUnit* unit_at(uint32_t number) const {
    return &p.units[min(number / p.kv_heads, p.units_max - 1)];
  }
  // What is needed of a unit.
  struct Extent {
    uint32_t first_block;
    uint2 tokens;  // the first, and the end
  };
  __device__ __forceinline__ Extent load_unit(uint32_t ordinal) const {
    const DecodeUnit* const unit = unit_at(item(ordinal));
    static_assert(offsetof(DecodeUnit, begin) % 8 == 0 &&
                  offsetof(DecodeUnit, end) == offsetof(DecodeUnit, begin) + 4);
    return {look_up(&unit->first_block), look_up(reinterpret_cast<const uint2*>(&unit->begin))};
  }

  __device__ __forceinline__ void open_unit(Batch& b, uint32_t ordinal, const Extent& unit) const {
    const uint32_t number = item(ordinal);
    b.columns = look_up(&unit_at(number)->columns);
    b.first_block = unit.first_block;
    b.begin = unit.tokens.x / 128;
    if (ANY) b.columns = (b.columns & ~0xfffu) | unit.tokens.x % 128;
    b.tokens = unit.tokens.y;
    b.flags = (is_item(number) ? ordinal : kNone) | number % p.kv_heads << kHeadShift | kOpens |
              (blocks_end(b) - b.begin > kLong ? kIsLong : 0);
  }
  __device__ __forceinline__ static uint32_t blocks_end(const Batch& b) {
    return (b.tokens + 127) / 128;
  }
  __device__ __forceinline__ bool has_block(const Batch& b) const {
    return b.ordinal() != kNone && b.begin + lane < blocks_end(b);
  }

  __device__ __forceinline__ void load_refs(Batch& b) const {
    b.ref = make_uint2(0, 0);
    if (has_block(b))
      b.ref =
          look_up(reinterpret_cast<const uint2*>(p.pages.blocks + b.first_block + b.begin + lane));
  }
  __device__ __forceinline__ void load_levels(Batch& b) const {
    b.level = 0;
    if (has_block(b)) b.level = look_up(&params.levels[b.ref.y]);
  }

  // Each load is started before what comes first needs all of the warp's attention.
  __device__ __forceinline__ void produce() const {
    Found found = {0, lane < kWarps ? lane : ~0u, 0};
    // What is looked up one after the other below is asked for at once.
    if (lane < params.level_count) prefetch_line(page_of(lane + 1));
    prefetch_line(p.pages.blocks);
    prefetch_line(p.pages.frames);
    prefetch_line(params.levels);
    Batch b;
    open_unit(b, 0, load_unit(0));
    Extent ahead = load_unit(1);
    load_refs(b);
    // The first pieces are waited for: their frames are needed two look-ups from now.
    if (b.ordinal() != kNone) prefetch_line(p.pages.frames + b.ref.x);
    load_levels(b);
#pragma unroll 1
    while (b.ordinal() != kNone) {
      Batch next = b;
      next.begin += 32;
      next.flags &= ~kOpens;
      if (next.begin >= blocks_end(b)) {
        open_unit(next, b.ordinal() + 1, ahead);
        ahead = load_unit(b.ordinal() + 2);
      }
      load_refs(next);
      find_pieces(b, found);
      load_levels(next);
      b = next;
    }
    if (lane < kWarps) {
      make_room(found, 1);
      tell(found, make_uint4(0, kNoMore << kHowShift, 0, kNone));
      show(found);
    }
  }

  // Where the chunk of this number lies.
  __device__ __forceinline__ static uint8_t* in_queue(uint8_t* ring, uint32_t number) {
    const uint32_t at = number % kQueue, part = at / kQueuePart;
    return ring + kQueueOffset + part * kStage + (at - part * kQueuePart) * 16;
  }

  static constexpr uint32_t kInTurn = 1 << 16;
  // What lanes below kWarps know of the queues of the warps whose numbers are theirs.
  struct Found {
    uint32_t chunks;  // found
    // what there is to do for it in the unit << 3 | its slot; of other lanes the most
    uint32_t load;
    // The same for all lanes, in one register: kInTurn, if that is how the unit's blocks are
    // dealt | the slot that comes next then << 8 | the warp that has the unit's first.
    uint32_t dealing;
    __device__ __forceinline__ uint32_t next() const { return dealing >> 8 & 255; }
    __device__ __forceinline__ uint32_t shift() const { return dealing & 255; }
  };

  // Of lanes below kWarps.
  __device__ __forceinline__ void make_room(const Found& found, uint32_t count) const {
    wait_for_room(smem_address(&state_of(ring_of(lane)).given), found.chunks + count, kQueue + 1);
  }
  __device__ __forceinline__ void tell(Found& found, const uint4& chunk) const {
    *reinterpret_cast<uint4*>(in_queue(ring_of(lane), found.chunks)) = chunk;
    found.chunks++;
  }
  // Lets the warp have what has been told.
  __device__ __forceinline__ void show(const Found& found) const {
    set_turn(smem_address(&state_of(ring_of(lane)).found), found.chunks);
  }

  // What one side of a block takes a warp, compared with others: by long sequences of one format,
  // and somewhat less where those are bound by memory, which blocks of others leave room in.
  __device__ __forceinline__ static uint32_t cost_of(uint32_t format) {
    switch (format) {
#define EBB_COST(FORMAT) \
  case FORMAT:           \
    return Format<FORMAT>::kCost;
      EBB_FORMATS_IN_PLACE(EBB_COST)
#undef EBB_COST
      default:
        return kPolarCost;
    }
  }
  static constexpr uint32_t kTileCost = 7;
  // Blocks of a unit from which on whatever is left uneven is little.
  static constexpr uint32_t kLong = 16;

  __device__ __forceinline__ const uint4* page_of(uint32_t level) const {
    return reinterpret_cast<const uint4*>(
        &params.pages[(level - 1) * params.page_count + 2 * p.layer]);
  }

  // Opens a unit: whoever had least to do in the one before has the first slot, which has most.
  __device__ __forceinline__ void open_slots(const Batch& b, Found& found) const {
    found.dealing = (found.shift() + __reduce_min_sync(~0u, found.load) % 8) % kWarps;
    found.load = lane < kWarps ? (lane + kWarps - found.shift()) % kWarps : ~0u;
    if (lane == 0) *shift_of(b.ordinal()) = static_cast<uint8_t>(found.shift());
  }

  // Deals a batch's pieces: the shrunk blocks that take longest first, those that take as long in
  // their order, then tiles. Each is for the slot that has least to do by then, so who has what
  // follows from the unit alone; the blocks of a long unit are dealt in turn, which comes out as
  // even and costs less. The code of all formats does not fit into the instruction cache: a warp is
  // told of its blocks as they are dealt, so that warps are in the same format at a time; of a
  // short unit of one set, in the blocks' order, which takes the finding warp less.
  __device__ __forceinline__ void find_pieces(const Batch& b, Found& found) const {
    const uint32_t block = b.begin + lane,
                   tokens = block < blocks_end(b) ? min(b.tokens - block * 128, 128u) : 0;
    const uint32_t to_end = b.tokens + (b.columns >> 16 & 0xff) - block * 128;
    const bool is_shrunk = tokens > 0 && b.level > 0;
    uint32_t level = b.level;  // ANY: | what is hidden of the block << 16
    if (ANY && (b.flags & kOpens) != 0) level |= hidden_of(b) << 16;
    uint32_t cost = 0;  // of a block that has not been dealt
    if (is_shrunk) {
      const uint4* const page = page_of(b.level);
      cost = cost_of(look_up(page).z) + cost_of(look_up(page + 1).z);
    }
    if ((b.flags & kOpens) != 0) open_slots(b, found);
    uint32_t blocks = 0;       // lanes whose blocks are for the warp of this lane's number
    found.dealing |= kInTurn;  // also the first of a short unit: none has anything yet
#pragma unroll 1
    for (;;) {
      const uint32_t most = __reduce_max_sync(~0u, cost);
      if (most > 0) {
        blocks |= deal_blocks(cost == most, most, found);
        if (cost == most) cost = 0;
        if ((b.flags & kIsLong) == 0) {
          found.dealing &= ~kInTurn;
          if (SETS == 1) continue;
        }
      }
      tell_each(blocks, [&](uint32_t of, bool is) {
        const uint32_t first_frame = __shfl_sync(~0u, b.ref.x, of),
                       its_level = __shfl_sync(~0u, level, of);
        if (is) tell_block(found, b, first_frame, its_level);
      });
      blocks = 0;
      if (most == 0) break;
    }
    uint32_t tiles = is_shrunk ? 0 : (tokens + 15) / 16;
#pragma unroll 1
    for (;;) {
      const uint32_t of = __reduce_min_sync(~0u, tiles > 0 ? lane : 32);
      if (of == 32) break;
      const uint32_t count = __shfl_sync(~0u, tiles, of),
                     hidden = ANY ? __shfl_sync(~0u, level, of) >> 16 : 0, first = hidden >> 8;
      uint32_t mine = 0;
#pragma unroll 1
      for (uint32_t tile = first; tile < count; tile++) deal(found, kTileCost, tile, mine);
      if (lane == of) tiles = 0;
      const uint32_t first_frame = __shfl_sync(~0u, b.ref.x, of),
                     block_to_end = __shfl_sync(~0u, to_end, of);
      tell_each(mine, [&](uint32_t tile, bool is) {
        if (is)
          tell_tile(found, b, first_frame, tile, block_to_end - tile * 16,
                    hidden_from(hidden & 0xff, tile * 16));
      });
    }
  }

  // Of this lane's block in a unit's first batch: tokens from its first one on that the last row
  // does not see | tiles that nobody does << 8.
  __device__ __forceinline__ uint32_t hidden_of(const Batch& b) const {
    const uint32_t first = b.columns & 0xfff;
    return hidden_from(first + (b.columns >> 12 & 15), lane * 128) |
           (lane == 0 ? first / 16 << 8 : 0);
  }
  // Tokens from `begin` to `end`, if they are in that order.
  __device__ __forceinline__ static uint32_t hidden_from(uint32_t end, uint32_t begin) {
    return end > begin ? end - begin : 0;
  }

  // Gives a piece to the slot that has least to do.
  __device__ __forceinline__ static void deal(Found& found, uint32_t cost, uint32_t piece,
                                              uint32_t& mine) {
    if (found.load != __reduce_min_sync(~0u, found.load)) return;
    mine |= 1u << piece;
    found.load += cost << 3;
  }

  // Deals blocks that take as long, those of lanes that have one; the lanes whose blocks are for
  // the warp of this lane's number.
  __device__ __forceinline__ uint32_t deal_blocks(bool has, uint32_t cost, Found& found) const {
    uint32_t mine = 0, those = __ballot_sync(~0u, has);
    if ((found.dealing & kInTurn) != 0) {
      // What is left for no whole round is for the first slots, and the next unit's first is whose
      // have none (`open_slots`).
      const uint32_t slot =
          has ? (found.next() + __popc(those & ((1u << lane) - 1))) % kWarps : kWarps;
#pragma unroll
      for (uint32_t of = 0; of < kWarps; of++) {
        const uint32_t its = __ballot_sync(~0u, slot == of);
        if (found.load % 8 == of) mine = its;
      }
      found.load += __popc(mine) * cost << 3;
      found.dealing = kInTurn | (found.next() + __popc(those)) % kWarps << 8 | found.shift();
      return mine;
    }
#pragma unroll 1
    for (; those != 0; those &= those - 1) deal(found, cost, __popc((those & -those) - 1), mine);
    return mine;
  }

  // Has each lane tell of what is its own, one after the other, all lanes at once: what they need
  // to know is looked up.
  template <class Tell>
  __device__ __forceinline__ static void tell_each(uint32_t mine, Tell tell) {
#pragma unroll 1
    while (__any_sync(~0u, mine != 0)) {
      tell(mine == 0 ? 0 : __popc((mine & -mine) - 1), mine != 0);
      __syncwarp();
      mine &= mine - 1;
    }
  }

  __device__ __forceinline__ uint64_t place(uint32_t frame, uint32_t offset) const {
    return static_cast<uint64_t>(frame) * (static_cast<uint32_t>(p.pages.frame_bytes) / 16) +
           offset / 16;
  }
  __device__ __forceinline__ static uint4 chunk(uint64_t at, uint32_t part, uint32_t bytes,
                                                uint64_t rest, uint32_t how, uint32_t info) {
    const uint32_t high = static_cast<uint32_t>(at >> 32) | part / 16 << kPartShift |
                          bytes / 16 << kBytesShift |
                          static_cast<uint32_t>(rest >> 32) << kRestShift | how << kHowShift;
    return make_uint4(static_cast<uint32_t>(at), high, static_cast<uint32_t>(rest), info);
  }

  __device__ __forceinline__ void tell_tile(Found& found, const Batch& b, uint32_t first_frame,
                                            uint32_t tile, uint32_t to_end, uint32_t hidden) const {
    const PageTable& t = p.pages;
    const uint32_t of_values = ANY ? (hidden & 15) << 20 | hidden >> 4 << 29 : kTile16 << 20,
                   info = b.ordinal() | kTile16 << 16 | of_values | min(to_end, 31u) << 24;
    RecordPlace at[2];
    uint32_t frame[2];
#pragma unroll
    for (uint32_t side = 0; side < 2; side++) {
      at[side] = record_place(t, (2 * p.layer + side) * p.kv_heads + b.head(), kRecord);
      frame[side] = look_up(&t.frames[first_frame + tile * t.frames_per_sub_block + at[side].slot]);
    }
    make_room(found, 2);
#pragma unroll
    for (uint32_t side = 0; side < 2; side++)
      tell(found, chunk(place(frame[side], at[side].offset), kRecord, kRecord, 0, kRows, info));
    show(found);
  }

  // What a warp was told of a tile or a block.
  __device__ __forceinline__ static uint32_t hidden_of_tile(uint32_t info) {
    return ANY ? (info >> 20 & 15) | (info >> 29 & 1) << 4 : 0;
  }
  __device__ __forceinline__ static uint32_t hidden_of_block(uint32_t info) {
    return ANY ? info >> 24 : 0;
  }

  // `level`: with what is hidden of the block.
  __device__ __forceinline__ void tell_block(Found& found, const Batch& b, uint32_t first_frame,
                                             uint32_t level) const {
    const PageTable& t = p.pages;
    const uint32_t frame_bytes = static_cast<uint32_t>(t.frame_bytes);
    const uint4* const page = page_of(ANY ? level & 0xffff : level);
    uint32_t info = b.ordinal() | (ANY ? level >> 16 << 24 : 0), offset[2], format[2];
    uint32_t frame[2][2];  // of a record's parts
#pragma unroll
    for (uint32_t side = 0; side < 2; side++) {
      const uint4 of_page = look_up(page + side);
      const uint32_t start = of_page.x + b.head() * of_page.y, slot = start / frame_bytes;
      offset[side] = start - slot * frame_bytes;
      format[side] = of_page.z;
      info |= of_page.z << (16 + 4 * side);
      const uint32_t* frames = t.frames + first_frame + slot;
      frame[side][0] = look_up(frames);
      frame[side][1] = offset[side] + of_page.y > frame_bytes ? look_up(frames + 1) : 0;
    }
    make_room(found, chunks_of(format[0]) + chunks_of(format[1]));
#pragma unroll
    for (uint32_t side = 0; side < 2; side++) {
      const uint32_t chunks = chunks_of(format[side]), next = next_chunk(format[side]);
      uint32_t at = offset[side], bytes = first_chunk(format[side], side);
#pragma unroll 1
      for (uint32_t i = 0; i < chunks; i++) {
        const bool beyond = at >= frame_bytes;
        const uint32_t part = beyond ? bytes : min(bytes, frame_bytes - at);
        const uint64_t from =
            beyond ? place(frame[side][1], at - frame_bytes) : place(frame[side][0], at);
        tell(found, chunk(from, part, bytes, place(frame[side][1], 0),
                          EBB_IS(format[side], ReadAs<Reader::kRows>) ? kRows
                          : part < bytes                              ? kDivided
                                                                      : kWhole,
                          info));
        at += bytes;
        bytes = next;
      }
      show(found);
    }
  }

  // Of one side of a block: its chunks, and the bytes of the first, with what comes before the
  // codes, and of the others. Those of split codes are their planes, those of polar keys the planes
  // of angles and of radii.
  __device__ __forceinline__ static uint32_t chunks_of(uint32_t format) {
    return EBB_IS(format, ReadAsCodes<8>)                    ? chunks_at<8>()
           : EBB_IS(format, ReadAsCodes<4>)                  ? chunks_at<4>()
           : EBB_IS(format, ReadAs<Reader::kRows>)           ? kTiles
           : EBB_IS(format, ReadAsSplit) || is_polar(format) ? 2
                                                             : 1;
  }
  __device__ __forceinline__ static uint32_t first_chunk(uint32_t format, uint32_t side) {
    if (EBB_IS(format, ReadAs<Reader::kRows>)) return kRecord;
    const uint32_t codes = EBB_IS(format, ReadAsCodes<8>) || EBB_IS(format, ReadAsCodes<4>) ? kCodes
                           : EBB_IS(format, ReadAsBoosted<2>)                               ? 41 * D
                           : EBB_IS(format, ReadAsBoosted<1>) ? 37 * D
                                                              : 32 * D;
    return codes + (side == 1 ? 512 : EBB_IS(format, HasAngleGrid) ? 2 * D : 4 * D);
  }
  __device__ __forceinline__ static uint32_t next_chunk(uint32_t format) {
    return EBB_IS(format, ReadAsSplit) || EBB_IS(format, HasRadiusBits<2>) ? 16 * D
           : EBB_IS(format, ReadAs<Reader::kRows>)                         ? kRecord
           : is_polar(format)                                              ? 32 * D
                                                                           : kCodes;
  }
  __device__ __forceinline__ static bool is_polar(uint32_t format) {
    return EBB_IS(format, ReadAs<Reader::kPolar>);
  }

  // ---- and the others have it loaded ----

  // What a warp that copies its chunks itself has to know, and what polar keys take from memory.
  struct alignas(16) Arena {
    const uint8_t* bytes;
    uint32_t code_base;
  };
  static_assert(sizeof(Arena) == 16);
  __device__ __forceinline__ static Arena& arena() {
    EBB_DYNAMIC_SHARED(shared);
    return *reinterpret_cast<Arena*>(shared + kArenaOffset);
  }

  // Codes of polar keys become floats as middle bits of 128: a byte at that place in the mantissa
  // adds its value, to the bit. The constant comes from memory: as one that the compiler knows it
  // would be part of each instruction, which then takes a second one for its other constant.
  static constexpr float kBase = 128.f;
  __device__ __forceinline__ static uint32_t code_base() { return arena().code_base; }

  // Of a chunk, in bytes or in units of 16.
  __device__ __forceinline__ static uint64_t from_of(uint2 at) {
    return static_cast<uint64_t>(at.y & 15) << 32 | at.x;
  }
  __device__ __forceinline__ static uint64_t rest_of(uint32_t y, uint32_t z) {
    return static_cast<uint64_t>(y >> kRestShift & 15) << 32 | z;
  }
  __device__ __forceinline__ static uint32_t bytes_of(uint32_t y) {
    return (y >> kBytesShift & 0x3ff) * 16;
  }
  __device__ __forceinline__ static uint32_t part_of_chunk(uint32_t y) {
    return (y >> kPartShift & 0x3ff) * 16;
  }

  // Where 16 bytes of a 16-bit row lie in a stage, as the copy engine swizzles them.
  __device__ __forceinline__ static uint32_t row_offset(uint32_t row, uint32_t chunk) {
    return chunk / 8 * 2048 + row * 128 + (chunk % 8 ^ row % 8) * 16;
  }

  __device__ __forceinline__ static uint32_t word(const uint8_t* at, uint32_t index) {
    return reinterpret_cast<const uint32_t*>(at)[index];
  }
};

}  // namespace ebb
