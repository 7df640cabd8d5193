use super::*;
use ebb_kernels::formats::FormatId as F;
use proptest::prelude::*;

const FORMATS: [(F, u64); 6] = [
    (F::F16, 160),
    (F::Int8, 83),
    (F::Int4, 43),
    (F::Kitty25, 28),
    (F::Kitty12, 26),
    (F::Int2, 23),
];

/// A page that starts at no loss; `losses` of the formats below 16 bit.
fn page(losses: &[f64]) -> Vec<Choice> {
    let losses = [0.0].iter().chain(losses);
    let choices = FORMATS
        .iter()
        .zip(losses)
        .map(|((format, bytes), loss)| Choice {
            format: *format,
            bytes: *bytes,
            loss: *loss,
        });
    choices.collect()
}

/// Losses that rise from format to format by these.
fn rising(by: &[f64]) -> Vec<Choice> {
    let mut sum = 0.0;
    let losses = by.iter().map(|x| {
        sum += x;
        sum
    });
    page(&losses.collect::<Vec<_>>())
}

/// Least loss within the budget, over all combinations.
fn brute_force(pages: &[Vec<Choice>], budget: u64) -> f64 {
    let Some((first, rest)) = pages.split_first() else {
        return 0.0;
    };
    let tries = first.iter().filter(|c| c.bytes <= budget);
    let tries = tries.map(|c| c.loss + brute_force(rest, budget - c.bytes));
    tries.fold(f64::INFINITY, f64::min)
}

/// The same by dynamic programming over bytes, for many pages.
fn by_bytes(pages: &[Vec<Choice>], budget: u64) -> f64 {
    let mut best = vec![0.0; budget as usize + 1];
    for page in pages {
        let of = |bytes: usize| {
            let fits = page.iter().filter(|c| c.bytes as usize <= bytes);
            let losses = fits.map(|c| c.loss + best[bytes - c.bytes as usize]);
            losses.fold(f64::INFINITY, f64::min)
        };
        best = (0..best.len()).map(of).collect();
    }
    best[budget as usize]
}

fn check(pages: &[Vec<Choice>], budget: u64, expected: f64) {
    let found = allocate(pages, budget).unwrap();
    assert!(found.bytes <= budget && found.proven, "{found:?}");
    assert_eq!(
        found.bytes,
        found.choices.iter().map(|c| c.bytes).sum::<u64>()
    );
    let off = (found.loss - expected).abs();
    assert!(
        off <= 1e-6 * expected.max(1e-12),
        "{} instead of {expected}",
        found.loss
    );
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(150))]

    #[test]
    fn no_combination_loses_less(
        losses in prop::collection::vec(prop::array::uniform5(0.0f64..1.0), 1..6),
        size in 0u32..6,
        share in 0.0f64..1.0,
    ) {
        // Some pages matter a million times as much as others, and all of them little.
        let pages: Vec<_> = losses.iter().enumerate().map(|(i, l)| {
            rising(&l.map(|x| x * 1e-7 * 10f64.powi((i as u32 * size % 7) as i32)))
        }).collect();
        let (least, most) = (23 * pages.len() as u64, 160 * pages.len() as u64);
        let budget = least + ((most - least) as f64 * share) as u64;
        check(&pages, budget, brute_force(&pages, budget));
    }
}

/// As many pages as models of 30 and of 80 layers have.
#[test]
fn a_whole_models_program_is_solved() {
    for pages in [60, 160] {
        solve_a_models(pages);
    }
}

fn solve_a_models(count: u64) {
    let mut state = 5u64;
    let mut next = || {
        state = state
            .wrapping_mul(6364136223846793005)
            .wrapping_add(1442695040888963407);
        (state >> 40) as f64 / f64::from(1 << 24)
    };
    let pages: Vec<_> = (0..count)
        .map(|_| {
            // Sensitivities spread over four orders of magnitude, as they do.
            let scale = 1e-6 * 10f64.powf(4.0 * next());
            rising(&[0.01, 1.0, 8.0, 3.0, 9.0].map(|x| x * scale * (0.5 + next())))
        })
        .collect();
    for mean in [24, 30, 43, 60, 100, 150] {
        let budget = count * mean;
        check(&pages, budget, by_bytes(&pages, budget));
    }
}

/// Interchangeable pages must not be searched in every permutation.
#[test]
fn many_equal_pages_are_no_harder() {
    let mut pages = vec![rising(&[0.01, 1.0, 8.0, 3.0, 9.0]); 40];
    pages.extend(vec![rising(&[0.02, 1.5, 2.0, 3.0, 4.0]); 20]);
    let budget = 60 * 30 + 7;
    check(&pages, budget, by_bytes(&pages, budget));
}

#[test]
fn ties_go_to_the_earlier_layers_and_are_counted() {
    let pages = vec![rising(&[1.0; 5]); 5];
    // Room for two pages at 16 bit beside three at the end.
    let found = allocate(&pages, 2 * 160 + 3 * 23).unwrap();
    let bytes: Vec<u64> = found.choices.iter().map(|c| c.bytes).collect();
    assert!(bytes.is_sorted_by(|a, b| a >= b), "{bytes:?}");
    assert!(found.ties > 0);
    assert!((found.loss - brute_force(&pages, 2 * 160 + 3 * 23)).abs() < 1e-9);
    // Pages of different worth trade nothing.
    let pages: Vec<_> = (1..=4).map(|i| rising(&[f64::from(i); 5])).collect();
    assert_eq!(allocate(&pages, 200).unwrap().ties, 0);
}

#[test]
fn a_budget_below_the_lowest_formats_says_what_they_take() {
    let pages = vec![rising(&[1.0; 5]); 3];
    let error = allocate(&pages, 68).unwrap_err();
    assert_eq!(
        error,
        BudgetError::Infeasible {
            least: 69,
            budget: 68
        }
    );
    assert!(error.to_string().contains("69") && error.to_string().contains("68"));
    assert_eq!(allocate(&pages, 69).unwrap().bytes, 69);
}

#[test]
fn a_budget_for_everything_loses_nothing() {
    let pages = vec![rising(&[1.0; 5]); 3];
    let found = allocate(&pages, 10_000).unwrap();
    assert_eq!((found.bytes, found.loss, found.ties), (480, 0.0, 0));
    // A format without loss is taken whatever the budget.
    let free = allocate(&[page(&[0.0, 0.0, 1.0, 2.0, 3.0])], 10_000).unwrap();
    assert_eq!(free.choices[0].format, F::Int4);
}

/// Losses of keys and of values of each layer, in turn, of formats that both sides have: what
/// `choices` are at equal bits.
fn per_layer(layers: usize, mut next: impl FnMut() -> f64) -> Vec<Vec<Choice>> {
    let page = |next: &mut dyn FnMut() -> f64| {
        let by = [0.01, 1.0, 8.0].map(|x| x * 1e-4 * (0.1 + next()));
        let all = [(F::F16, 0.0), (F::Int8, by[0]), (F::Int4, by[0] + by[1])];
        let all = all.into_iter().chain([(F::Int2, by.iter().sum())]);
        let bytes = |f: F| FORMATS.iter().find(|(g, _)| *g == f).unwrap().1;
        let choice = |(format, loss)| Choice {
            format,
            bytes: bytes(format),
            loss,
        };
        all.map(choice).collect::<Vec<_>>()
    };
    (0..2 * layers).map(|_| page(&mut next)).collect()
}

fn seeded(seed: u64) -> impl FnMut() -> f64 {
    let mut state = seed;
    move || {
        state = state
            .wrapping_mul(6364136223846793005)
            .wrapping_add(1442695040888963407);
        (state >> 40) as f64 / f64::from(1 << 24)
    }
}

/// Least loss of all combinations of a width a layer.
fn brute_force_per_layer(pages: &[Vec<Choice>], budget: u64) -> f64 {
    if pages.is_empty() {
        return 0.0;
    }
    let (layer, rest) = pages.split_at(2);
    let tries = layer[0].iter().zip(&layer[1]);
    let tries = tries.filter(|(k, v)| k.bytes + v.bytes <= budget);
    let tries = tries
        .map(|(k, v)| k.loss + v.loss + brute_force_per_layer(rest, budget - k.bytes - v.bytes));
    tries.fold(f64::INFINITY, f64::min)
}

#[test]
fn a_layers_keys_and_values_get_the_same_bits_and_no_combination_loses_less() {
    for seed in 0..8 {
        let pages = per_layer(6, seeded(seed));
        for share in [0.0, 0.1, 0.3, 0.6, 1.0] {
            let budget = 12 * 23 + (12.0 * 137.0 * share) as u64;
            let found = allocate_per_layer(&pages, budget).unwrap();
            assert!(found.bytes <= budget && found.proven, "{found:?}");
            let sums = |of: fn(&Choice) -> f64| found.choices.iter().map(of).sum::<f64>();
            assert_eq!(sums(|c| c.bytes as f64), found.bytes as f64);
            assert!((sums(|c| c.loss) - found.loss).abs() < 1e-12);
            for layer in found.choices.chunks_exact(2) {
                assert_eq!(layer[0].format, layer[1].format);
            }
            let least = brute_force_per_layer(&pages, budget);
            assert!(
                (found.loss - least).abs() <= 1e-6 * least.max(1e-12),
                "{} instead of {least}",
                found.loss
            );
        }
    }
}

#[test]
fn pages_apart_never_lose_more_than_per_layer() {
    let mut less = 0;
    for seed in 0..24 {
        let pages = per_layer(8, seeded(100 + seed));
        for mean in [24, 30, 43, 60, 100, 150] {
            let apart = allocate(&pages, 16 * mean).unwrap();
            let together = allocate_per_layer(&pages, 16 * mean).unwrap();
            assert!(
                apart.loss <= together.loss * (1.0 + 1e-9),
                "{} apart, {} together",
                apart.loss,
                together.loss
            );
            less += usize::from(apart.loss < 0.99 * together.loss);
        }
    }
    assert!(less > 20, "only {less} programs gain");
}

/// A floor that is not among the choices is not chosen, 16 bit neither.
#[test]
fn widths_of_one_side_and_those_left_out_are_no_choice() {
    let mut pages = per_layer(3, seeded(7));
    for page in &mut pages {
        page.retain(|c| matches!(c.format, F::Int4 | F::Int2));
    }
    let found = allocate_per_layer(&pages, 10_000).unwrap();
    assert!(
        found.choices.iter().all(|c| c.format == F::Int4),
        "{found:?}"
    );
    // Keys per token beside values of the same bits.
    for layer in pages.chunks_exact_mut(2) {
        for choice in &mut layer[0] {
            choice.format = match choice.format {
                F::Int4 => F::Int4t,
                _ => F::Int2t,
            };
        }
    }
    let found = allocate_per_layer(&pages, 2 * (43 + 43 + 23)).unwrap();
    let names: Vec<_> = found.choices.iter().map(|c| c.format.name()).collect();
    assert_eq!(
        names.iter().filter(|n| **n == "int4t").count(),
        2,
        "{names:?}"
    );
    assert_eq!(
        names.iter().filter(|n| **n == "int4").count(),
        2,
        "{names:?}"
    );
    for page in pages.iter_mut().step_by(2) {
        page.retain(|c| c.format == F::Int4t);
    }
    for page in pages.iter_mut().skip(1).step_by(2) {
        page.retain(|c| c.format == F::Int2);
    }
    let error = allocate_per_layer(&pages, 10_000).unwrap_err().to_string();
    assert!(error.contains("keys can have 4 bits, values 2"), "{error}");
}
