//! How far two methods agree on what matters.

/// Spearman's rank correlation: Pearson's of the ranks, equal values sharing the mean of theirs.
/// None where one list says nothing (fewer than two values, all equal) or the lists differ in
/// length.
pub fn spearman(a: &[f64], b: &[f64]) -> Option<f64> {
    if a.len() != b.len() {
        return None;
    }
    let (a, b) = (ranks(a), ranks(b));
    let mean = (a.len() as f64 + 1.0) / 2.0;
    let product = |x: &[f64], y: &[f64]| -> f64 {
        let pairs = x.iter().zip(y);
        pairs.map(|(x, y)| (x - mean) * (y - mean)).sum()
    };
    let scale = (product(&a, &a) * product(&b, &b)).sqrt();
    (scale > 0.0).then(|| product(&a, &b) / scale)
}

/// Ranks from 1.
fn ranks(values: &[f64]) -> Vec<f64> {
    let of = |value: &f64| {
        let below = values.iter().filter(|v| *v < value).count();
        let equal = values.iter().filter(|v| *v == value).count();
        below as f64 + (equal as f64 + 1.0) / 2.0
    };
    values.iter().map(of).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn order_counts_and_not_size() {
        let a = [1.0, 2.0, 3.0, 4.0, 5.0];
        assert_eq!(spearman(&a, &[0.1, 0.2, 30.0, 31.0, 1e9]), Some(1.0));
        assert_eq!(spearman(&a, &[5.0, 4.0, 3.0, 2.0, 1.0]), Some(-1.0));
        // 1 − 6 Σd² / (n (n² − 1)) with d² = 1, 1, 0, 1, 1.
        let swapped = spearman(&a, &[2.0, 1.0, 3.0, 5.0, 4.0]).unwrap();
        assert!((swapped - 0.8).abs() < 1e-12);
    }

    /// Against scipy.stats.spearmanr([1, 2, 2, 4], [3, 1, 4, 4]).
    #[test]
    fn equal_values_share_their_ranks() {
        let got = spearman(&[1.0, 2.0, 2.0, 4.0], &[3.0, 1.0, 4.0, 4.0]).unwrap();
        assert!((got - 0.5).abs() < 1e-12, "{got}");
        assert_eq!(ranks(&[7.0, 7.0, 1.0]), [2.5, 2.5, 1.0]);
    }

    #[test]
    fn lists_that_say_nothing_have_no_correlation() {
        assert_eq!(spearman(&[1.0, 1.0], &[1.0, 2.0]), None);
        assert_eq!(spearman(&[1.0], &[1.0]), None);
        assert_eq!(spearman(&[1.0, 2.0], &[1.0]), None);
    }
}
