//! Faults planted on purpose, one at a time, to see that the tests find them.
//!
//! Only a build with the feature `plants` has them, chosen by the setting `xdb.plant`; in every other one all of this is
//! nothing.

/// A fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Plant {
    /// An answer is applied whatever became of its lease.
    NoFence,
    /// Results commit asynchronously.
    AsyncResults,
    /// A conditional close does not look into the inbox again under its lock.
    BlindClose,
    /// The claim goes on from where it was, and never looks back.
    #[cfg(feature = "plants")]
    Cursor,
    /// A timer fires twice.
    TimerTwice,
    /// A commit now and then wakes nobody.
    #[cfg(feature = "plants")]
    LostWakeup,
}

#[cfg(feature = "plants")]
mod planted {
    use super::Plant;
    use pgrx::{GucContext, GucFlags, GucRegistry, GucSetting};
    use std::cell::Cell;
    use std::ffi::CString;
    use xdb_engine::Duration;

    static PLANT: GucSetting<Option<CString>> = GucSetting::<Option<CString>>::new(Some(c"none"));
    static LEASE_GRACE_MS: GucSetting<i32> = GucSetting::<i32>::new(30_000);

    /// Of how many wake-ups one is lost.
    const LOST_ONE_IN: u32 = 4;

    pub fn define() {
        GucRegistry::define_string_guc(
            c"xdb.plant",
            c"A fault planted in the engine.",
            c"For tests of the tests.",
            &PLANT,
            GucContext::Postmaster,
            GucFlags::default(),
        );
        GucRegistry::define_int_guc(
            c"xdb.lease_grace",
            c"How long a lease outlives the timeout of its call.",
            c"Less than nothing makes calls again that are under way, which the fence has to sort out.",
            &LEASE_GRACE_MS,
            -60_000,
            60_000,
            GucContext::Postmaster,
            GucFlags::UNIT_MS,
        );
    }

    pub fn is(plant: Plant) -> bool {
        let name = match plant {
            Plant::NoFence => c"no-fence",
            Plant::AsyncResults => c"async-results",
            Plant::BlindClose => c"blind-close",
            Plant::Cursor => c"cursor",
            Plant::TimerTwice => c"timer-twice",
            Plant::LostWakeup => c"lost-wakeup",
        };
        PLANT.get().is_some_and(|chosen| chosen.as_c_str() == name)
    }

    pub fn loses_wakeup() -> bool {
        thread_local! {
            static COUNT: Cell<u32> = const { Cell::new(0) };
        }
        COUNT.set(COUNT.get() + 1);
        is(Plant::LostWakeup) && COUNT.get().is_multiple_of(LOST_ONE_IN)
    }

    pub fn lease_grace(_: Duration) -> Duration {
        Duration(i64::from(LEASE_GRACE_MS.get()) * 1000)
    }
}

#[cfg(feature = "plants")]
pub use planted::{define, is, lease_grace, loses_wakeup};

/// Defines the settings that choose a fault.
#[cfg(not(feature = "plants"))]
pub const fn define() {}

/// Whether this fault was planted.
#[cfg(not(feature = "plants"))]
pub const fn is(_: Plant) -> bool {
    false
}

/// Whether the wake-up that is due now gets lost.
#[cfg(not(feature = "plants"))]
pub const fn loses_wakeup() -> bool {
    false
}

/// How long a lease outlives the timeout of its call, where that is `usual`.
#[cfg(not(feature = "plants"))]
pub const fn lease_grace(usual: xdb_engine::Duration) -> xdb_engine::Duration {
    usual
}
