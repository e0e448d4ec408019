//! Samples of one quantity, one for each round, their quartiles, and how sure their median is.

use lb_tests::random::Random;

/// How often samples are drawn anew for an interval.
const DRAWS: usize = 2_000;
/// Where the draws begin: equal samples give equal intervals.
const SEED: u64 = 6;

/// Samples, sorted. Never empty once there was a round.
#[derive(Debug)]
pub struct Samples(Vec<f64>);

impl FromIterator<f64> for Samples {
    fn from_iter<I: IntoIterator<Item = f64>>(samples: I) -> Self {
        let mut samples: Vec<f64> = samples.into_iter().collect();
        samples.sort_by(f64::total_cmp);
        Self(samples)
    }
}

impl Samples {
    /// Half of the samples lie below.
    pub fn median(&self) -> f64 {
        middle(&self.0)
    }

    /// A quarter of the samples lies below the first, another above the second. (The medians of the lower and the upper half.)
    pub fn quartiles(&self) -> [f64; 2] {
        let half = self.0.len() / 2;
        if half == 0 {
            return [self.median(); 2];
        }
        [middle(&self.0[..half]), middle(&self.0[self.0.len() - half..])]
    }

    /// The smallest sample that is not below this share (0 to 1) of all: 0.99 of 100 samples is the second largest, 1 the
    /// largest.
    pub fn quantile(&self, share: f64) -> f64 {
        let not_above =
            self.0.iter().enumerate().find(|(index, _)| precise(index + 1) >= share * precise(self.0.len()));
        not_above.map_or(f64::NAN, |(_, sample)| *sample)
    }

    /// Where the median lies with a probability of 95 %: bootstrap, by percentiles.
    pub fn interval(&self) -> [f64; 2] {
        if self.0.is_empty() {
            return [f64::NAN; 2];
        }
        let mut random = Random::new(SEED);
        let draw = |_| (0..self.0.len()).map(|_| *random.of(&self.0)).collect::<Self>().median();
        let medians: Self = (0..DRAWS).map(draw).collect();
        [medians.quantile(0.025), medians.quantile(0.975)]
    }

    pub fn len(&self) -> usize {
        self.0.len()
    }
}

fn precise(count: usize) -> f64 {
    u32::try_from(count).map_or(f64::INFINITY, f64::from)
}

fn middle(sorted: &[f64]) -> f64 {
    match sorted.len() {
        0 => f64::NAN,
        odd if odd % 2 == 1 => sorted[odd / 2],
        even => f64::midpoint(sorted[even / 2 - 1], sorted[even / 2]),
    }
}

#[cfg(test)]
mod tests {
    use super::Samples;

    #[test]
    fn one_outlier_moves_no_median() {
        let calm: Samples = [1.0, 1.1, 0.9, 1.0, 1.0].into_iter().collect();
        let disturbed: Samples = [1.0, 1.1, 0.9, 1.0, 50.0].into_iter().collect();
        assert!((calm.median() - 1.0).abs() < 1e-9 && (disturbed.median() - 1.0).abs() < 1e-9);
    }

    #[test]
    fn quantiles_are_samples() {
        let samples: Samples = (1..=100).map(f64::from).rev().collect();
        for (share, sample) in [(0.0, 1.0), (0.5, 50.0), (0.99, 99.0), (1.0, 100.0)] {
            assert!((samples.quantile(share) - sample).abs() < 1e-9, "{share}");
        }
        let few: Samples = [2.0, 1.0].into_iter().collect();
        assert!((few.quantile(0.99) - 2.0).abs() < 1e-9 && few.len() == 2);
        assert!(Samples::from_iter([]).quantile(0.5).is_nan());
    }

    #[test]
    fn an_interval_holds_the_median_and_narrows_with_samples() {
        let spread = |count: u32| -> Samples { (0..count).map(|n| f64::from(n % 10)).collect() };
        let [few, many] = [10, 1_000].map(|count| {
            let samples = spread(count);
            let [low, high] = samples.interval();
            assert!(low <= samples.median() && samples.median() <= high);
            high - low
        });
        assert!(many < few, "{many} {few}");
        assert!(Samples::from_iter([]).interval()[0].is_nan());
    }

    #[test]
    fn quartiles_enclose_the_middle_half() {
        let samples: Samples = (1..=8).map(f64::from).rev().collect();
        assert!((samples.median() - 4.5).abs() < 1e-9);
        let [low, high] = samples.quartiles();
        assert!((low - 2.5).abs() < 1e-9 && (high - 6.5).abs() < 1e-9);
        let single: Samples = [3.0].into_iter().collect();
        assert!(single.quartiles().iter().all(|quartile| (quartile - 3.0).abs() < 1e-9));
    }
}
