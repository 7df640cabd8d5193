//! fp16 metadata: rounding in a chosen direction, and fast exact widening.

use half::f16;

/// Greatest finite fp16.
pub(crate) const FP16_MAX: f32 = 65504.0;

/// The greatest fp16 not above `x`, for `|x| <= 65504`. Zero is always +0.
pub(crate) fn round_down(x: f32) -> f16 {
    debug_assert!(x.abs() <= FP16_MAX);
    let near = f16::from_f32(x);
    let down = if near.to_f32() > x {
        match near.to_bits() {
            0 => f16::from_bits(0x8001),
            bits if bits & 0x8000 == 0 => f16::from_bits(bits - 1),
            bits => f16::from_bits(bits + 1),
        }
    } else {
        near
    };
    positive_zero(down)
}

/// The least fp16 not below `x`, for `0 <= x <= 65504`. Zero is always +0.
pub(crate) fn round_up(x: f32) -> f16 {
    debug_assert!((0.0..=FP16_MAX).contains(&x));
    let near = f16::from_f32(x);
    if near.to_f32() < x {
        f16::from_bits(near.to_bits() + 1)
    } else {
        positive_zero(near)
    }
}

/// The fp16 nearest to `x`, the even one of two, for `|x| <= 65504`. Zero is always +0.
pub(crate) fn round_nearest(x: f32) -> f16 {
    debug_assert!(x.abs() <= FP16_MAX);
    positive_zero(f16::from_f32(x))
}

/// -0 and +0 are one value and must have one encoding.
fn positive_zero(x: f16) -> f16 {
    if x.to_bits() == 0x8000 { f16::ZERO } else { x }
}

/// Widens a finite fp16, denormals included, in a form that vectorises.
#[inline(always)]
pub(crate) fn widen(bits: u16) -> f32 {
    let magnitude = f32::from_bits(((bits & 0x7fff) as u32) << 13);
    // The exponent biases differ by 112; as a product, denormals come out right.
    let value = magnitude * f32::from_bits((127 + 112) << 23);
    f32::from_bits(value.to_bits() | ((bits & 0x8000) as u32) << 16)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn finite() -> impl Iterator<Item = f16> {
        (0..=u16::MAX).map(f16::from_bits).filter(|h| h.is_finite())
    }

    #[test]
    fn widening_is_exact() {
        for h in finite() {
            assert_eq!(widen(h.to_bits()).to_bits(), h.to_f32().to_bits());
        }
    }

    #[test]
    fn rounding_goes_the_way_it_says_and_no_further() {
        let mut ascending: Vec<f32> = finite().map(f16::to_f32).collect();
        ascending.sort_by(f32::total_cmp);
        ascending.dedup();
        for pair in ascending.windows(2) {
            let (low, high) = (pair[0], pair[1]);
            assert_eq!(round_down(low).to_f32(), low);
            for x in [low.next_up(), (low + high) / 2.0, high.next_down()] {
                if low < x && x < high {
                    assert_eq!(round_down(x).to_f32(), low, "down from {x:e}");
                    if x >= 0.0 {
                        assert_eq!(round_up(x).to_f32(), high, "up from {x:e}");
                    }
                }
            }
        }
        assert_eq!(round_down(-0.0).to_bits(), 0);
        assert_eq!(round_up(-0.0).to_bits(), 0);
        assert_eq!(round_up(65504.0).to_f32(), 65504.0);
    }
}
