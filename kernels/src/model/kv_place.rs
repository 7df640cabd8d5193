//! Where the heads of attention layers lie in the KV cache.
//!
//! All layers of the KV cache have records of one shape: `head_dim` channels each, as many a layer
//! and side. Where attention layers differ, in the width of their heads or in their number, a wide
//! head is several records, one behind the other, and a layer with many records is several layers
//! of the KV cache. Page formats, shrinking and admission know nothing of it.

use super::spec::ModelSpec;

/// Where the keys and values that a layer's attention reads lie.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KvPlace {
    /// The first layer of the KV cache.
    pub first_layer: usize,
    /// Records of a layer of the KV cache.
    records: usize,
    /// KV heads.
    heads: usize,
    /// Records of a head.
    parts: usize,
}

impl KvPlace {
    /// Of a layer whose heads are `parts` records each; the KV cache has as many records a layer.
    #[cfg(test)]
    pub(crate) fn new(first_layer: usize, heads: usize, parts: usize) -> Self {
        Self {
            first_layer,
            records: heads * parts,
            heads,
            parts,
        }
    }

    /// Of each layer of a valid model, if it has attention.
    pub(super) fn all(spec: &ModelSpec) -> Vec<Option<Self>> {
        let (records, head_dim) = records(spec);
        let mut places: Vec<Option<Self>> = vec![None; spec.layers.len()];
        let mut first_layer = 0;
        for (layer, attention) in spec.attentions() {
            places[layer] = match attention.kv_from {
                Some(owner) => places[owner],
                None => {
                    let own = Self {
                        first_layer,
                        records,
                        heads: attention.kv_heads,
                        parts: attention.head_dim / head_dim,
                    };
                    first_layer += own.layers();
                    Some(own)
                }
            };
        }
        places
    }

    /// Layers of the KV cache that it is.
    pub fn layers(&self) -> usize {
        self.heads * self.parts / self.records
    }

    /// Whether its heads are the records of one layer of the KV cache, each by itself.
    pub fn is_whole(&self) -> bool {
        self.parts == 1 && self.layers() == 1
    }

    /// Records of a head: head `head`'s channels are those of records `0..parts()`, in order.
    pub fn parts(&self) -> usize {
        self.parts
    }

    /// The layer of the KV cache, and the record in it, that is a part of a head.
    #[inline]
    pub fn record(&self, head: usize, part: usize) -> (usize, usize) {
        let record = head * self.parts + part;
        let layer = self.first_layer + record / self.records;
        (layer, record % self.records)
    }
}

/// Records of a layer and side of the KV cache, and their channels: the most that divide all
/// layers' evenly.
pub(super) fn records(spec: &ModelSpec) -> (usize, usize) {
    let own = || spec.attentions().filter(|(_, a)| a.kv_from.is_none());
    let head_dim = own().fold(0, |all, (_, a)| gcd(all, a.head_dim));
    let records = own().fold(0, |all, (_, a)| {
        gcd(all, a.kv_heads * (a.head_dim / head_dim))
    });
    (records, head_dim)
}

fn gcd(a: usize, b: usize) -> usize {
    match b {
        0 => a,
        _ => gcd(b, a % b),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Rope, UniformModel};

    /// Layers of these KV heads and channels.
    fn spec(layers: &[(usize, usize)]) -> ModelSpec {
        let mut spec = UniformModel {
            hidden: 64,
            layers: layers.len(),
            q_heads: 48,
            kv_heads: 1,
            head_dim: 8,
            intermediate: 64,
            vocab: 100,
            rope: Rope::new(vec![1.0; 4], 1.0),
            max_positions: 64,
            ..UniformModel::default()
        }
        .spec();
        for (layer, (kv_heads, head_dim)) in spec.layers.iter_mut().zip(layers) {
            let attention = layer.attention_mut();
            (attention.kv_heads, attention.head_dim) = (*kv_heads, *head_dim);
        }
        spec
    }

    #[test]
    fn every_record_of_the_cache_is_a_part_of_one_head() {
        // Alike; Gemma 4 E2B, 31B and a tiny one; widths of which none divides the other.
        for (layers, cached) in [
            (&[(2, 64), (2, 64)][..], (2, (2, 64))),
            (&[(1, 256), (1, 512), (1, 256)], (4, (1, 256))),
            (&[(16, 256), (4, 512)], (3, (8, 256))),
            (&[(2, 64), (2, 512)], (9, (2, 64))),
            (&[(3, 96), (4, 128)], (25, (1, 32))),
        ] {
            let mut spec = spec(layers);
            let last = spec.layers.len() - 1;
            let mut again = spec.layers[last].clone();
            again.attention_mut().kv_from = Some(last);
            spec.layers.push(again);
            assert_eq!(spec.validate(), Ok(()));
            let geometry = spec.kv_geometry();
            let (count, (heads, head_dim)) = cached;
            assert_eq!((geometry.layers, geometry.kv_heads), (count, heads));
            assert_eq!(geometry.head_dim, head_dim);
            let places: Vec<_> = spec.kv_places().into_iter().flatten().collect();
            let mut records = Vec::new();
            for (layer, &(kv_heads, dim)) in layers.iter().enumerate() {
                let place = places[layer];
                assert_eq!(place.parts() * head_dim, dim);
                for head in 0..kv_heads {
                    records.extend((0..place.parts()).map(|part| place.record(head, part)));
                }
            }
            let all = (0..count).flat_map(|layer| (0..heads).map(move |record| (layer, record)));
            assert_eq!(records, all.collect::<Vec<_>>());
            assert_eq!(places[last + 1], places[last]);
            let writers = spec.kv_layers();
            assert_eq!(writers.len(), count);
            assert!(writers.is_sorted() && writers.last() == Some(&last));
        }
    }

    #[test]
    fn layers_share_only_what_is_there_and_alike() {
        let shares = |from: usize, change: fn(&mut ModelSpec)| {
            let mut spec = spec(&[(2, 64), (2, 64), (2, 64)]);
            spec.layers[2].attention_mut().kv_from = Some(from);
            change(&mut spec);
            spec.validate()
        };
        assert_eq!(shares(1, |_| ()), Ok(()));
        for (from, change) in [
            (2, (|_| ()) as fn(&mut ModelSpec)),
            (7, |_| ()),
            (1, |spec| spec.layers[1].attention_mut().kv_from = Some(0)),
            (1, |spec| spec.layers[1].attention_mut().kv_heads = 4),
            (1, |spec| spec.layers[1].attention_mut().window = Some(8)),
        ] {
            let error = shares(from, change).expect_err("nothing to share");
            assert!(error.to_string().starts_with("layer 2 reads"), "{error}");
        }
    }
}
