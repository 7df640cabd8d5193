//! Angle and radius of a pair in plain f32 arithmetic: no library function, no fused operation, so
//! that every device computes the same bits.

use std::f32::consts::{FRAC_2_PI, FRAC_PI_2, PI, TAU};

/// Coefficients of `atan(a) / a` in `a^2` on 0..=1, highest first; the error of the polynomial is
/// below 2e-8 (Abramowitz & Stegun 4.4.49).
const ATAN: [f32; 9] = [
    0.002_866_225_7,
    -0.016_165_737,
    0.042_909_614,
    -0.075_289_64,
    0.106_562_64,
    -0.142_089,
    0.199_935_51,
    -0.333_331_45,
    1.0,
];

/// The angle of (`x`, `y`) in `0..=2 pi`; 0 for the origin. Both are finite.
#[inline(always)]
pub(crate) fn angle(x: f32, y: f32) -> f32 {
    let (ax, ay) = (x.abs(), y.abs());
    let (small, large) = if ay > ax { (ax, ay) } else { (ay, ax) };
    let a = if large > 0.0 { small / large } else { 0.0 };
    let a2 = a * a;
    let octant = a * ATAN.iter().fold(0.0, |sum, c| sum * a2 + c);
    let quadrant = if ay > ax { FRAC_PI_2 - octant } else { octant };
    let half = if x < 0.0 { PI - quadrant } else { quadrant };
    if y < 0.0 { TAU - half } else { half }
}

/// The radius of (`x`, `y`).
#[inline(always)]
pub(crate) fn radius(x: f32, y: f32) -> f32 {
    (x * x + y * y).sqrt()
}

/// Cosine and sine of an angle in `0..=8`, to about one unit in the last place.
#[inline(always)]
pub(crate) fn cos_sin(angle: f32) -> (f32, f32) {
    // pi/2 in two parts, the first with few enough bits that its multiples are exact.
    const HIGH: f32 = 1.570_312_5;
    const LOW: f32 = 4.838_268e-4;
    let quadrant = (angle * FRAC_2_PI + 0.5).floor();
    let x = (angle - quadrant * HIGH) - quadrant * LOW;
    let x2 = x * x;
    let sin = x + x * x2 * (-0.166_666_55 + x2 * (8.332_161e-3 + x2 * -1.951_529_6e-4));
    let cos =
        1.0 - 0.5 * x2 + x2 * x2 * (4.166_664_6e-2 + x2 * (-1.388_731_6e-3 + x2 * 2.443_315_7e-5));
    match quadrant as u32 % 4 {
        0 => (cos, sin),
        1 => (-sin, cos),
        2 => (-cos, -sin),
        _ => (sin, -cos),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn angles_agree_with_the_library() {
        for i in 0..20_000 {
            let t = i as f64 / 20_000.0 * std::f64::consts::TAU;
            let length = 2f64.powi(i % 40 - 20);
            let (x, y) = ((t.cos() * length) as f32, (t.sin() * length) as f32);
            let want = f64::from(y)
                .atan2(f64::from(x))
                .rem_euclid(std::f64::consts::TAU);
            assert!((f64::from(angle(x, y)) - want).abs() < 1e-6, "{x} {y}");
        }
        assert_eq!(angle(0.0, 0.0), 0.0);
        assert_eq!(angle(-0.0, -0.0), 0.0);
        assert_eq!(angle(1.0, 0.0), 0.0);
        assert_eq!(angle(0.0, 2.0), FRAC_PI_2);
        assert_eq!(angle(-3.0, 0.0), PI);
        assert_eq!(angle(1e-39, 0.0), 0.0);
    }

    #[test]
    fn cosine_and_sine_agree_with_the_library() {
        for i in 0..=80_000 {
            let t = i as f32 * 1e-4;
            let (cos, sin) = cos_sin(t);
            let (want_sin, want_cos) = f64::from(t).sin_cos();
            assert!((f64::from(cos) - want_cos).abs() < 2e-7, "cos {t}");
            assert!((f64::from(sin) - want_sin).abs() < 2e-7, "sin {t}");
        }
    }
}
