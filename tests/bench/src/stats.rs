//! Medians, spreads and percentiles.

/// The summary of several measurements of one thing.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Spread {
    pub median: f64,
    pub min: f64,
    pub max: f64,
}

impl Spread {
    /// None: there are no values.
    pub fn of(values: &[f64]) -> Option<Spread> {
        let mut sorted = values.to_vec();
        sorted.sort_by(f64::total_cmp);
        let (min, max) = (*sorted.first()?, *sorted.last()?);
        let middle = sorted.len() / 2;
        let median =
            if sorted.len().is_multiple_of(2) { (sorted[middle - 1] + sorted[middle]) / 2.0 } else { sorted[middle] };
        Some(Spread { median, min, max })
    }
}

/// Many measurements of one kind, for their percentiles.
pub struct Distribution(Vec<f64>);

impl Distribution {
    pub fn of(mut values: Vec<f64>) -> Distribution {
        values.sort_by(f64::total_cmp);
        Distribution(values)
    }

    /// The percentile by nearest rank: the smallest value that at least `percent` of a hundred values do not exceed.
    /// NaN without values.
    pub fn percentile(&self, percent: f64) -> f64 {
        let rank = (percent / 100.0 * self.0.len() as f64).ceil() as usize;
        self.0.get(rank.saturating_sub(1)).copied().unwrap_or(f64::NAN)
    }

    pub fn least(&self) -> f64 {
        self.percentile(0.0)
    }

    pub fn count(&self) -> usize {
        self.0.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_of_an_even_number_is_between_the_middle_two() {
        assert_eq!(Spread::of(&[4.0, 1.0, 3.0, 2.0]), Some(Spread { median: 2.5, min: 1.0, max: 4.0 }));
        assert_eq!(Spread::of(&[9.0, 1.0, 5.0]), Some(Spread { median: 5.0, min: 1.0, max: 9.0 }));
        assert_eq!(Spread::of(&[7.0]), Some(Spread { median: 7.0, min: 7.0, max: 7.0 }));
        assert_eq!(Spread::of(&[]), None);
    }

    #[test]
    fn a_percentile_is_the_nearest_rank() {
        let hundred = Distribution::of((1..=100).rev().map(f64::from).collect());
        assert_eq!(hundred.percentile(50.0), 50.0);
        assert_eq!(hundred.percentile(95.0), 95.0);
        assert_eq!(hundred.percentile(99.0), 99.0);
        assert_eq!(hundred.percentile(100.0), 100.0);
        assert_eq!(hundred.least(), 1.0);
    }

    #[test]
    fn of_few_values_the_last_is_the_ninety_ninth_percentile() {
        let few = Distribution::of(vec![3.0, 1.0, 2.0]);
        assert_eq!(few.percentile(99.0), 3.0);
        assert_eq!(few.percentile(50.0), 2.0);
        assert_eq!(few.percentile(1.0), 1.0);
    }

    #[test]
    fn nothing_has_no_percentile() {
        assert!(Distribution::of(Vec::new()).percentile(50.0).is_nan());
    }
}
