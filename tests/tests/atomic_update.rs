//! An update of a service is atomic for readers: no packet meets a mix of two generations, hammered while it changes.
