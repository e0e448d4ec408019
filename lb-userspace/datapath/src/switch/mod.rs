//! One set of tables follows another while both serve: other map sizes, or the records of another version.
//!
//! 1. The new set is made beside the old one ([`prepare`]). Equal maps are shared; planned tables are copied, with their ids and generations.
//! 2. A gate takes the place of the entry program at every hook, one by one. All gates read one word, and call the old programs.
//! 3. One write of the word puts the new set in force everywhere. The gates now call the new programs, except for packets of connections that
//!    only the old tables know.
//! 4. A thread moves connections and everything else that was noted meanwhile ([`moving`]).
//! 5. The new entry programs take the places of the gates, and what is pinned of the old set goes.
//!
//! The agent may be killed anywhere. Before step 3 the next start begins anew, and the old programs serve; after it the next start goes on.

mod attached_programs;
mod folder;
mod moving;
mod prepare;
mod stages;
mod switching;

pub use folder::Folder;
pub use prepare::{Begun, Prepared, end_switch, prepare};
pub use switching::{Switching, moved};
