//! SentencePiece's BPE (Kudo and Richardson 2018, `bpe_model.cc`): the model behind Llama 2,
//! Mistral and Gemma vocabularies.
//!
//! A text starts as its characters. Of all neighbours whose concatenation is a piece, the pair
//! whose piece has the highest score is merged first, the leftmost of equals. Converting the
//! scores to ranked merges, as tokenizer.json files have them, gives the same tokens as long as no
//! two pieces have the same score; here nothing is converted, so it holds for any scores.

use std::cmp::Ordering;
use std::collections::{BinaryHeap, HashMap};
use std::path::{Path, PathBuf};

use rustc_hash::FxHashMap;
use tokenizers::models::bpe::BpeTrainer;
use tokenizers::{Model, Token};

/// What a piece is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Role {
    /// Takes part in merges and comes out as a token.
    Normal,
    /// Takes part in merges, and is split again at the end.
    Unused,
}

#[derive(Clone, Copy, Debug)]
struct Piece {
    id: u32,
    score: f32,
    role: Role,
}

/// The vocabulary of a SentencePiece BPE model.
#[derive(Debug, Default)]
pub(super) struct SpmModel {
    pieces: FxHashMap<Box<str>, Piece>,
    /// Every token's id by its text, reserved ones included.
    ids: FxHashMap<Box<str>, u32>,
    /// The token of each byte, when the vocabulary has all 256.
    bytes: Option<Vec<u32>>,
    unknown: Option<u32>,
}

impl SpmModel {
    /// Adds a piece that merges may build.
    pub(super) fn add_piece(&mut self, text: &str, id: u32, score: f32, unused: bool) {
        let role = if unused { Role::Unused } else { Role::Normal };
        self.pieces.insert(text.into(), Piece { id, score, role });
        self.ids.insert(text.into(), id);
    }

    /// Adds a token that merges never build: control, unknown, user-defined and byte tokens.
    pub(super) fn add_reserved(&mut self, text: &str, id: u32) {
        self.ids.insert(text.into(), id);
    }

    /// Sets what stands for characters that are no pieces: 256 byte tokens, or an unknown token.
    pub(super) fn set_fallback(&mut self, bytes: Option<Vec<u32>>, unknown: Option<u32>) {
        debug_assert!(bytes.as_ref().is_none_or(|b| b.len() == 256));
        self.bytes = bytes;
        self.unknown = unknown;
    }

    /// Token ids of a text whose spaces are already `▁`.
    pub(super) fn encode(&self, text: &str) -> Vec<u32> {
        let mut merger = Merger::new(self, text);
        merger.run();
        merger.ids()
    }

    fn push_unknown(&self, text: &str, out: &mut Vec<u32>) {
        match (&self.bytes, self.unknown) {
            (Some(bytes), _) => out.extend(text.bytes().map(|b| bytes[usize::from(b)])),
            // SentencePiece joins neighbouring unknown characters into one token.
            (None, Some(unknown)) if out.last() != Some(&unknown) => out.push(unknown),
            (None, _) => {}
        }
    }
}

/// A run of the text that is one symbol, in a list linked by indices. `len == 0`: merged away.
#[derive(Clone, Copy)]
struct Symbol {
    start: usize,
    len: usize,
    prev: Option<usize>,
    next: Option<usize>,
}

/// A possible merge. Ordered by score, then leftmost first (the heap pops the greatest).
struct Candidate {
    score: f32,
    left: usize,
    right: usize,
    /// Length of the merged text: tells whether either side has changed since.
    len: usize,
}

impl Ord for Candidate {
    fn cmp(&self, other: &Self) -> Ordering {
        self.score
            .total_cmp(&other.score)
            .then_with(|| other.left.cmp(&self.left))
    }
}

impl PartialOrd for Candidate {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Candidate {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Candidate {}

struct Merger<'a> {
    model: &'a SpmModel,
    text: &'a str,
    symbols: Vec<Symbol>,
    heap: BinaryHeap<Candidate>,
    /// How an unused piece was last put together: bytes of its left part.
    splits: FxHashMap<&'a str, usize>,
}

impl<'a> Merger<'a> {
    fn new(model: &'a SpmModel, text: &'a str) -> Self {
        let mut symbols: Vec<Symbol> = Vec::with_capacity(text.len());
        for (i, (start, c)) in text.char_indices().enumerate() {
            symbols.push(Symbol {
                start,
                len: c.len_utf8(),
                prev: i.checked_sub(1),
                next: Some(i + 1),
            });
        }
        if let Some(last) = symbols.last_mut() {
            last.next = None;
        }
        Self {
            model,
            text,
            symbols,
            heap: BinaryHeap::new(),
            splits: FxHashMap::default(),
        }
    }

    fn run(&mut self) {
        for right in 1..self.symbols.len() {
            self.propose(Some(right - 1), Some(right));
        }
        while let Some(best) = self.heap.pop() {
            let (left, right) = (self.symbols[best.left], self.symbols[best.right]);
            if left.len == 0 || right.len == 0 || left.len + right.len != best.len {
                continue;
            }
            self.symbols[best.left].len = best.len;
            self.symbols[best.left].next = right.next;
            self.symbols[best.right].len = 0;
            if let Some(next) = right.next {
                self.symbols[next].prev = Some(best.left);
            }
            self.propose(left.prev, Some(best.left));
            self.propose(Some(best.left), right.next);
        }
    }

    fn propose(&mut self, left: Option<usize>, right: Option<usize>) {
        let (Some(left), Some(right)) = (left, right) else {
            return;
        };
        let (l, r) = (self.symbols[left], self.symbols[right]);
        let merged = &self.text[l.start..l.start + l.len + r.len];
        let Some(piece) = self.model.pieces.get(merged) else {
            return;
        };
        if piece.role == Role::Unused {
            self.splits.insert(merged, l.len);
        }
        self.heap.push(Candidate {
            score: piece.score,
            left,
            right,
            len: merged.len(),
        });
    }

    fn ids(&self) -> Vec<u32> {
        let mut out = Vec::new();
        let mut parts: Vec<&str> = Vec::new();
        let mut at = if self.symbols.is_empty() {
            None
        } else {
            Some(0)
        };
        while let Some(i) = at {
            let symbol = self.symbols[i];
            parts.push(&self.text[symbol.start..symbol.start + symbol.len]);
            while let Some(part) = parts.pop() {
                match (self.model.pieces.get(part), self.splits.get(part)) {
                    (Some(piece), Some(&left)) if piece.role == Role::Unused => {
                        parts.push(&part[left..]);
                        parts.push(&part[..left]);
                    }
                    (Some(piece), _) => out.push(piece.id),
                    (None, _) => self.model.push_unknown(part, &mut out),
                }
            }
            at = symbol.next;
        }
        out
    }
}

impl Model for SpmModel {
    type Trainer = BpeTrainer;

    fn tokenize(&self, sequence: &str) -> tokenizers::Result<Vec<Token>> {
        let ids = self.encode(sequence);
        // Offsets and texts are never asked for: the engine reads ids only.
        Ok(ids
            .into_iter()
            .map(|id| Token::new(id, String::new(), (0, 0)))
            .collect())
    }

    fn token_to_id(&self, token: &str) -> Option<u32> {
        self.ids.get(token).copied()
    }

    fn id_to_token(&self, id: u32) -> Option<String> {
        self.ids
            .iter()
            .find(|&(_, &known)| known == id)
            .map(|(text, _)| text.to_string())
    }

    fn get_vocab(&self) -> HashMap<String, u32> {
        self.ids
            .iter()
            .map(|(text, &id)| (text.to_string(), id))
            .collect()
    }

    fn get_vocab_size(&self) -> usize {
        self.ids.len()
    }

    fn save(&self, _folder: &Path, _prefix: Option<&str>) -> tokenizers::Result<Vec<PathBuf>> {
        Err("a vocabulary rebuilt from GGUF metadata is not saved".into())
    }

    fn get_trainer(&self) -> BpeTrainer {
        BpeTrainer::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn model(pieces: &[(&str, f32)]) -> SpmModel {
        let mut model = SpmModel::default();
        for (id, &(text, score)) in pieces.iter().enumerate() {
            model.add_piece(text, id as u32, score, false);
        }
        model
    }

    #[test]
    fn the_best_score_merges_first_and_the_leftmost_of_equals() {
        let m = model(&[("a", 0.0), ("b", 0.0), ("aa", -2.0), ("ab", -1.0)]);
        assert_eq!(m.encode("aab"), [0, 3]);
        assert_eq!(m.encode("aaa"), [2, 0]);
        assert_eq!(m.encode(""), Vec::<u32>::new());
    }

    #[test]
    fn two_splits_of_one_piece_tie_and_the_left_one_wins() {
        // [aa][a][aa] can become [aaa][aa] or [aa][aaa]: both build the same piece.
        let m = model(&[("a", 0.0), ("aa", -1.0), ("aaa", -2.0)]);
        assert_eq!(m.encode("aaaaa"), [1, 2]);
        assert_eq!(m.encode("aaa"), [2]);
    }

    #[test]
    fn unused_pieces_come_apart_again() {
        let mut m = model(&[("a", 0.0), ("b", 0.0), ("c", 0.0)]);
        m.add_piece("ab", 3, -1.0, true);
        m.add_piece("abc", 4, -2.0, false);
        assert_eq!(m.encode("ab"), [0, 1]);
        assert_eq!(m.encode("abc"), [4]);
    }

    #[test]
    fn unknown_characters_fall_back() {
        let mut m = model(&[("a", 0.0)]);
        m.set_fallback(None, Some(9));
        assert_eq!(m.encode("ééa€"), [9, 0, 9]);
        m.set_fallback(Some((100..356).collect()), Some(9));
        assert_eq!(m.encode("éa"), [100 + 0xc3, 100 + 0xa9, 0]);
        m.set_fallback(None, None);
        assert_eq!(m.encode("éa"), [0]);
    }
}
