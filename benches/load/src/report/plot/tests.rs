use super::*;

/// Fails unless every tag is closed and every attribute quoted.
pub(in crate::report) fn well_formed(svg: &str) {
    let mut open = Vec::new();
    for tag in svg.split('<').skip(1) {
        let (tag, _) = tag.split_once('>').expect("tags end");
        let name = tag.split([' ', '/']).next().unwrap();
        if let Some(name) = tag.strip_prefix('/') {
            assert_eq!(open.pop(), Some(name));
        } else if !tag.ends_with('/') {
            open.push(name);
        }
        assert_eq!(tag.matches('"').count() % 2, 0, "{tag}");
    }
    assert!(open.is_empty(), "{open:?}");
}

fn plot(mark: Mark, points: Vec<(f64, f64)>) -> Plot {
    Plot {
        title: "a < b & \"c\"".into(),
        x: Axis::from_zero("x", points.iter().map(|p| p.0)),
        y: Axis::from_zero("y", points.iter().map(|p| p.1)),
        series: vec![Series {
            label: "<name>".into(),
            mark,
            tone: "a",
            points,
        }],
        target: Some((1.0, "target".into())),
    }
}

#[test]
fn every_mark_is_well_formed_also_of_nothing() {
    for mark in [Mark::Dots, Mark::Line, Mark::Area, Mark::Cloud, Mark::Rug] {
        for points in [
            vec![],
            vec![(0.0, 0.0)],
            vec![(1.0, 2.0), (3.0, f64::INFINITY)],
        ] {
            let svg = plot(mark, points).svg();
            well_formed(&svg);
            assert!(!svg.contains("NaN") && !svg.contains("inf"), "{svg}");
            assert!(svg.contains("a &lt; b &amp; &quot;c&quot;"));
        }
    }
}

#[test]
fn a_large_cloud_is_thinned() {
    let points = (0..100_000).map(|i| (f64::from(i), 1.0)).collect();
    let svg = plot(Mark::Cloud, points).svg();
    let drawn = svg.matches("h0").count();
    assert!((3000..=POINTS_MAX).contains(&drawn), "{drawn}");
}
