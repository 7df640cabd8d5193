use super::*;
use crate::weight_formats::E4M3;

/// Checks one set against plain arithmetic.
struct Check;

const BYTES: usize = 64;

impl DotKernel for Check {
    #[inline(always)]
    fn run<D: Dots>(self, d: D) {
        let lanes = D::Floats::LANES;
        let mut random = 1u32;
        let mut next = || {
            random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            random >> 24
        };
        let mut floats = [0f32; 16];
        let mut bytes = [0u8; BYTES];
        for round in 0..300 {
            // The first rounds are the extremes.
            let weights: [u8; BYTES] = std::array::from_fn(|_| match round {
                0 | 1 => 255,
                2 => 128,
                _ => next() as u8,
            });
            let four: [i8; 4] = std::array::from_fn(|_| match round {
                0 | 2 => 127,
                1 => -127,
                _ => (next() as i32 - 128).max(-127) as i8,
            });
            let word = i32::from_le_bytes(four.map(|x| x as u8));
            // SAFETY: both arrays hold the widest vectors.
            unsafe {
                let (start, w) = (d.splat(-1000), d.load(weights.as_ptr()));
                let narrow = d.and(w, d.splat_byte(127));
                for (wide, sum) in [
                    (true, d.dot::<true>(start, w, word)),
                    (false, d.dot::<false>(start, narrow, word)),
                ] {
                    d.floats().store(floats.as_mut_ptr(), d.to_float(sum));
                    for (lane, got) in floats[..lanes].iter().enumerate() {
                        let mask = if wide { 255 } else { 127 };
                        let products = (0..4)
                            .map(|i| i32::from(weights[lane * 4 + i] & mask) * i32::from(four[i]));
                        assert_eq!(*got, (products.sum::<i32>() - 1000) as f32);
                    }
                }
                for bits in 0..8 {
                    let mask = 0xffu8 << bits;
                    let left = d.and(d.shl(w, bits), d.splat_byte(mask));
                    let right = d.and(d.shr(w, bits), d.splat_byte(0xff >> bits));
                    d.store(bytes.as_mut_ptr(), left);
                    assert!((0..4 * lanes).all(|i| bytes[i] == weights[i] << bits));
                    d.store(bytes.as_mut_ptr(), right);
                    assert!((0..4 * lanes).all(|i| bytes[i] == weights[i] >> bits));
                }
                let table: [u8; 16] = std::array::from_fn(|i| (i * 17 + 3) as u8);
                let looked = d.look_up(&table, d.and(w, d.splat_byte(15)));
                d.store(bytes.as_mut_ptr(), looked);
                assert!((0..4 * lanes).all(|i| bytes[i] == table[usize::from(weights[i] & 15)]));
            }
        }
        for first in (0..256).step_by(lanes) {
            let codes: [u8; 16] = std::array::from_fn(|i| (first + i) as u8);
            // SAFETY: 16 codes and 16 floats, as many as the widest vectors have.
            unsafe {
                let values = d.load_e4m3(codes.as_ptr());
                d.floats().store(floats.as_mut_ptr(), values);
            }
            for (lane, got) in floats[..lanes].iter().enumerate() {
                let want = E4M3[first + lane];
                let want = if want.is_nan() {
                    480f32.copysign(want)
                } else {
                    want
                };
                assert_eq!((got * 256.0).to_bits(), want.to_bits(), "{}", first + lane);
            }
            let halves = codes.map(|code| u16::from(code) * 199);
            // SAFETY: as above.
            unsafe {
                let values = d.load_f16(halves.as_ptr());
                d.floats().store(floats.as_mut_ptr(), values);
            }
            for (got, half) in floats[..lanes].iter().zip(halves) {
                let want = half::f16::from_bits(half).to_f32();
                assert!(*got == want || got.is_nan() && want.is_nan());
            }
        }
    }
}

#[test]
fn every_set_computes_the_same() {
    for set in DotSet::available() {
        eprintln!("{}", set.name());
        set.run(Check);
    }
    for isa in Isa::available() {
        assert!(DotSet::available().contains(&DotSet::of(isa)));
    }
}
