//! Packed rows: what they stand for is what is read as bf16.

use std::sync::Arc;

use ebb_kernels::bf16;
use ebb_kernels::model::{LayerTensor, ModelSpec, TensorName, WeightSource};
use ebb_kernels::weight_formats::{Codes, PackedTensor, WeightFormat};
use ebb_models::model::gguf::{GgmlType, pack, packed_format};
use ebb_models::model::{KeyScales, ModelError};

use crate::dequant::vectors;
use crate::gguf_families::{gguf_name, open, tiny_gguf};
use crate::tiny;

/// `count` rows of a tensor from `first` on.
pub(crate) fn rows<W: WeightSource>(
    weights: &W,
    name: TensorName,
    format: WeightFormat,
    (first, count): (usize, usize),
) -> Result<PackedTensor, W::Error> {
    let inputs = *weights.shape(name)?.last().expect("a matrix");
    let mut tensor = PackedTensor::new(format, count, inputs);
    weights.read_packed(name, first, tensor.rows_mut(0, count))?;
    Ok(tensor)
}

/// How many bf16 numbers lie between two of one sign; 0 of either sign is the same.
pub(crate) fn ulps(a: bf16, b: bf16) -> u16 {
    if a == b {
        return 0;
    }
    assert_eq!(a.is_sign_negative(), b.is_sign_negative(), "{a} {b}");
    a.to_bits().abs_diff(b.to_bits())
}

/// Asserts that the tensors that `is_packed` names are packed, and the others not; that their
/// weights are at most `ulps_max` numbers of bf16 from those that are read plain; and that rows
/// read in parts are those that are read at once.
pub(crate) fn assert_packed<W: WeightSource>(
    weights: &W,
    spec: &ModelSpec,
    is_packed: impl Fn(TensorName) -> bool,
    ulps_max: u16,
) {
    for name in TensorName::all(spec) {
        let format = weights.packed(name).expect("a format or none");
        assert_eq!(format.is_some(), is_packed(name), "{name}");
        let Some(format) = format else {
            continue;
        };
        let shape = name.shape(spec);
        let [rows_of @ .., inputs] = &shape[..] else {
            panic!("{name} is no matrix");
        };
        let (count, inputs) = (rows_of.iter().product::<usize>(), *inputs);
        assert!((1..=inputs).contains(&format.group), "{name}: {format:?}");
        let whole = rows(weights, name, format, (0, count)).expect("rows");
        let plain = weights.load(name).expect("rows");
        for (packed, plain) in whole.dequantise().into_iter().zip(&plain) {
            assert!(
                ulps(packed, *plain) <= ulps_max,
                "{name}: {packed} for {plain}"
            );
        }
        let parts = [(0, 1), (count - 1, 1), (3, 7), (5, count.saturating_sub(6))];
        // Routers have few rows.
        let is_within = |(first, len): &(usize, usize)| *len > 0 && first + len <= count;
        for (first, count) in parts.into_iter().filter(is_within) {
            let part = rows(weights, name, format, (first, count)).expect("rows");
            for row in 0..count {
                let (at, whole) = (first + row, &whole);
                assert_eq!(part.codes(row), whole.codes(at), "{name}, row {at}");
                assert_eq!(part.scales(row), whole.scales(at), "{name}, row {at}");
                assert_eq!(part.offsets(row), whole.offsets(at), "{name}, row {at}");
            }
        }
    }
}

#[test]
fn every_gguf_type_is_packed_as_it_is_dequantised() {
    for (kind, encoded, expected) in vectors() {
        let Some(format) = packed_format(kind) else {
            assert_eq!(kind.block_elements(), 1, "{kind:?}");
            continue;
        };
        assert_eq!(kind.block_elements() % format.group, 0, "{kind:?}");
        let mut tensor = PackedTensor::new(format, 1, expected.len());
        pack(kind, &encoded, tensor.rows_mut(0, 1));
        let greatest = tensor.codes(0).iter().max().copied().map(usize::from);
        assert!(greatest < Some(1 << format.codes.bits()), "{kind:?}");
        for (packed, plain) in tensor.dequantise().into_iter().zip(expected) {
            assert_eq!(ulps(packed, plain), 0, "{kind:?}: {packed} for {plain}");
        }
    }
}

/// A tiny Llama whose matrices are of a type, with the blocks of its vectors over and over.
pub(crate) fn of_type(kind: GgmlType, spec: &ModelSpec) -> crate::gguf_builder::GgufBuilder {
    let mut gguf = tiny_gguf("llama", spec);
    let (_, encoded, _) = vectors()
        .into_iter()
        .find(|(found, ..)| *found == kind)
        .expect("vectors of every type");
    let blocks: Vec<_> = encoded.chunks(kind.block_bytes()).collect();
    for (at, tensor) in gguf.tensors.iter_mut().enumerate() {
        if let [rows, columns] = tensor.shape[..] {
            let count = (rows * columns) as usize / kind.block_elements();
            // No two rows alike, so that their order shows.
            let block = |index: usize| {
                let mut block = blocks[(at + index) % blocks.len()].to_vec();
                let last = block.last_mut().expect("bytes");
                *last = last.wrapping_add(index as u8);
                block
            };
            tensor.data = (0..count).flat_map(block).collect();
            tensor.type_id = kind.id();
        }
    }
    gguf
}

#[test]
fn rows_of_q_and_k_are_packed_in_half_split_order() {
    let spec = tiny::spec(tiny::family("llama"), false);
    for kind in [GgmlType::Q8_0, GgmlType::Q4_1, GgmlType::Q5_0] {
        let model = open(&of_type(kind, &spec)).expect("a valid model");
        let is_matrix = |name: TensorName| name.shape(&spec).len() == 2;
        assert_packed(&model.weights(), &spec, is_matrix, 0);
        assert!(model.weights().is_packed(&spec).expect("formats"));
    }
    let plain = open(&tiny_gguf("llama", &spec)).expect("a valid model");
    assert!(!plain.weights().is_packed(&spec).expect("formats"));
}

#[test]
fn what_key_scales_are_folded_into_is_expanded() {
    use LayerTensor as L;
    let spec = tiny::spec(tiny::family("llama"), false);
    let mut model = open(&of_type(GgmlType::Q8_0, &spec)).expect("a valid model");
    let scales = KeyScales {
        format: "int4".to_owned(),
        alpha: vec![0.5; 2],
        heads: 2,
        scales: vec![vec![2.0; 16]; 2],
    };
    model
        .fold_key_scales(Some(Arc::new(scales)))
        .expect("they fit");
    let is_packed = |name: TensorName| {
        let is_folded = matches!(name, TensorName::Layer(_, L::Q | L::K));
        name.shape(&spec).len() == 2 && !is_folded
    };
    assert_packed(&model.weights(), &spec, is_packed, 0);
    // Scales that are computed in every step leave them packed.
    let is_matrix = |name: TensorName| name.shape(&spec).len() == 2;
    assert_packed(&model.unfolded_weights(), &spec, is_matrix, 0);
    let online = model.online_key_scales().expect("scales");
    online.check(&model.spec).expect("they fit");
}

/// The error of reading a tensor of a tiny Llama after a change of its GGUF data: the same whether
/// it is read packed or expanded.
fn refused(kind: GgmlType, change: impl Fn(&mut Vec<u8>)) -> Option<ModelError> {
    let spec = tiny::spec(tiny::family("llama"), false);
    let mut gguf = of_type(kind, &spec);
    let name = TensorName::Layer(1, LayerTensor::Down);
    let stored = gguf_name(name);
    let mut tensors = gguf.tensors.iter_mut();
    let tensor = tensors.find(|tensor| tensor.name == stored);
    change(&mut tensor.expect("it is there").data);
    let weights = open(&gguf).expect("the values are not looked at").weights();
    let format = weights.packed(name).expect("a format").expect("packed");
    let packed = rows(&weights, name, format, (0, 32)).err();
    let expanded = weights.load(name).err();
    let sentence = |error: &Option<ModelError>| error.as_ref().map(ToString::to_string);
    assert_eq!(sentence(&packed), sentence(&expanded));
    packed
}

#[test]
fn scales_that_are_not_finite_are_refused() {
    const INFINITY: [u8; 2] = [0x00, 0x7C];
    const NAN: [u8; 2] = [0x01, 0xFE];
    for bad in [INFINITY, NAN] {
        for at in [0, 2] {
            let change = |data: &mut Vec<u8>| data[at..at + 2].copy_from_slice(&bad);
            let error = refused(GgmlType::Q4_1, change).expect("refused");
            let sentence = error.to_string();
            assert!(
                sentence.contains("ffn_down.weight` holds a value that is not finite"),
                "{sentence}"
            );
        }
    }
    // E8M0 has no infinity: 255 is NaN, whatever it is multiplied with.
    for codes in [0x00, 0x11, 0x66] {
        let not_a_number = |data: &mut Vec<u8>| {
            data[0] = 255;
            data[1..17].fill(codes);
        };
        assert!(refused(GgmlType::MXFP4, not_a_number).is_some());
    }
    // 2^127 · 0.5 is finite, 2^127 · 4 is not.
    let great = |codes: u8| {
        move |data: &mut Vec<u8>| {
            data[0] = 254;
            data[1..17].fill(codes);
        }
    };
    assert!(refused(GgmlType::MXFP4, great(0x11)).is_none());
    assert!(refused(GgmlType::MXFP4, great(0x66)).is_some());
}

#[test]
fn formats_say_what_types_are() {
    let four = |zero| Codes::Int { bits: 4, zero };
    let format = |kind| packed_format(kind).expect("packed");
    assert_eq!(format(GgmlType::Q4_0).codes, four(8));
    assert_eq!(format(GgmlType::Q4_K).codes, four(0));
    assert!(format(GgmlType::Q4_K).has_offsets && !format(GgmlType::Q6_K).has_offsets);
    assert_eq!(packed_format(GgmlType::BF16), None);
}
