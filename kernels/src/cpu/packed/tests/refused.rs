//! Parts that do not fit each other or the output: safe callers must not get past the checks.

use super::*;

/// Multiplies one row of 64 inputs into 80 columns.
fn refuse(parts: Vec<Part>, stride: usize, add: bool) {
    let mut pool = Pool::new(1).unwrap();
    let before = vec![0.0; 80];
    let dots = DotSet::of(Isa::detect());
    multiply(
        &mut pool,
        dots,
        &parts,
        &random(1, 64),
        (stride, add),
        &before,
    );
}

fn of_format(format: WeightFormat, outputs: usize) -> QuantisedMatrix {
    let tensor = tensor(format, 1, outputs, 64);
    matrix(&mut Pool::new(1).unwrap(), &tensor)
}

fn part(first: usize, outputs: usize) -> Part {
    Part::new(first, Weights::Plain(of_format(INT4, outputs)), None)
}

#[test]
#[should_panic(expected = "column 39 is of two parts")]
fn parts_that_overlap() {
    refuse(vec![part(0, 40), part(39, 8)], 80, false);
}

#[test]
#[should_panic(expected = "too many columns")]
fn parts_beyond_the_stride() {
    refuse(vec![part(0, 40), part(41, 40)], 80, false);
}

#[test]
#[should_panic(expected = "too many columns")]
fn parts_beyond_every_address() {
    refuse(vec![part(0, 40), part(usize::MAX - 7, 8)], 80, false);
}

#[test]
#[should_panic(expected = "E4M3 and integers in one part")]
fn a_gate_of_integers_with_an_up_of_floats() {
    let both = Weights::Gated([of_format(INT4, 40), of_format(E4M3, 40)]);
    refuse(vec![Part::new(0, both, None)], 80, false);
}

#[test]
#[should_panic(expected = "a bias is for what is stored")]
fn a_bias_of_what_is_added() {
    let weights = Weights::Plain(of_format(INT4, 40));
    refuse(vec![Part::new(0, weights, Some(vec![1.0; 40]))], 80, true);
}

#[test]
#[should_panic(expected = "a bias is for what is stored")]
fn a_bias_of_gate_and_up() {
    let both = Weights::Gated([of_format(INT4, 40), of_format(INT6, 40)]);
    refuse(vec![Part::new(0, both, Some(vec![1.0; 40]))], 80, false);
}

#[test]
#[should_panic(expected = "gate and up cannot be added")]
fn gate_and_up_of_what_is_added() {
    let both = Weights::Gated([of_format(INT4, 40), of_format(INT6, 40)]);
    refuse(vec![Part::new(0, both, None)], 80, true);
}
