------------------------------- MODULE Guard --------------------------------
(***************************************************************************)
(* A lock server that loses its data, and the guard that delays grants     *)
(* until the leases from before have ended or are asserted again           *)
(* (lib/guard.lua). One lock; other locks of its shard only begin an       *)
(* epoch. Queue, jobs and limits are not here: Lock.tla has them.          *)
(*                                                                         *)
(* Times are the ticks that are left, as in Lock.tla. `stamp` is the       *)
(* server's clock in so far as it orders fences and epochs (Fence.tla).    *)
(***************************************************************************)
EXTENDS Integers, FiniteSets

CONSTANTS
  Callers,
  Ttl,       \* ticks of a lease
  Losses,    \* how often the server loses its data
  IsPartial, \* TRUE: it may also lose only the last writes
  HasFresh,  \* TRUE: a process that got no number before the loss may acquire this lock after it
  Mutation   \* "none"; "no_guard": a server without its data grants at once

VARIABLES
  srv,      \* what the server holds
  replica,  \* the same of an earlier moment
  stamp,    \* the next number
  pc,       \* caller -> "new", "idle" (it has got a number), "holding", "done"
  trust,    \* caller -> ticks until its own deadline
  fence,    \* caller -> the fence of its hold
  known,    \* caller -> the latest number that its process got
  call,     \* caller -> the call that the server may still execute: [operation, trust]
  ordered,  \* FALSE once a grant had a lower fence than one before
  losses    \* how often the data was lost

vars == <<srv, replica, stamp, pc, trust, fence, known, call, ordered, losses>>

Max(a, b) == IF a > b THEN a ELSE b
Minus1(n) == Max(n - 1, 0)
NoCall == [operation |-> "none", trust |-> 0]

-----------------------------------------------------------------------------
(* Server. `began` is the epoch, 0 for none, and `guard` the ticks that a   *)
(* lease from before it may have left; `lost`: there was data before it.    *)

Empty == [holder |-> "nobody", expiry |-> 0, last |-> 0, began |-> 0, guard |-> 0, lost |-> FALSE]

Begin(s, isLost) == [s EXCEPT !.began = stamp, !.guard = Ttl, !.lost = isLost]

\* guarded_until: what the number of a caller shows.
NoteLoss(s, number) ==
  IF number > s.last THEN [Begin(s, TRUE) EXCEPT !.last = number]
  ELSE IF s.began = 0 THEN Begin(s, number > 0)
  ELSE IF 0 < number /\ number < s.began THEN [s EXCEPT !.lost = TRUE]
  ELSE s

IsGuarded(s) == Mutation # "no_guard" /\ s.lost /\ s.guard > 0
IsFree(s) == s.holder = "nobody" \/ s.expiry = 0
Hold(s, c, number) ==
  [s EXCEPT !.holder = c, !.expiry = Ttl, !.last = Max(@, number)]

Acquire(s, c) ==
  LET noted == NoteLoss(s, known[c])
  IN IF IsGuarded(noted) \/ ~IsFree(noted) THEN [s |-> noted, reply |-> 0]
     ELSE [s |-> Hold(noted, c, stamp), reply |-> stamp]

\* Another lock of the shard.
AcquireOther(s, c) ==
  LET noted == NoteLoss(s, known[c])
  IN IF IsGuarded(noted) THEN [s |-> noted, reply |-> 0]
     ELSE [s |-> [noted EXCEPT !.last = stamp], reply |-> stamp]

Renew(s, c) ==
  IF s.holder = c THEN [s |-> [s EXCEPT !.expiry = Ttl], reply |-> fence[c]]
  ELSE [s |-> s, reply |-> 0]

Reassert(s, c) ==
  LET noted == NoteLoss(s, fence[c])
      mayReturn == IsGuarded(noted) /\ fence[c] < noted.began
  IN IF mayReturn /\ (noted.holder = c \/ IsFree(noted))
     THEN [s |-> Hold(noted, c, fence[c]), reply |-> fence[c]]
     ELSE [s |-> noted, reply |-> 0]

Release(s, c) ==
  IF s.holder = c THEN [s EXCEPT !.holder = "nobody", !.expiry = 0] ELSE s

Result(operation, c) ==
  CASE operation = "acquire" -> Acquire(srv, c)
    [] operation = "other" -> AcquireOther(srv, c)
    [] operation = "renew" -> Renew(srv, c)
    [] OTHER -> Reassert(srv, c)

-----------------------------------------------------------------------------
(* Clients.                                                                 *)

Init ==
  /\ srv = Empty /\ replica = Empty /\ stamp = 1
  /\ pc = [c \in Callers |-> "new"]
  /\ trust = [c \in Callers |-> 0]
  /\ fence = [c \in Callers |-> 0]
  /\ known = [c \in Callers |-> 0]
  /\ call = [c \in Callers |-> NoCall]
  /\ ordered = TRUE /\ losses = 0

Inside(c) == pc[c] = "holding" /\ trust[c] > 0

\* "new" callers first use another lock, as a process does that has been at work for some time.
Operations(c) ==
  CASE pc[c] = "new" -> IF HasFresh THEN {"other", "acquire"} ELSE {"other"}
    [] pc[c] = "idle" -> {"acquire"}
    [] Inside(c) -> {"renew", "reassert"}
    [] OTHER -> {}

Send(c) ==
  /\ call[c] = NoCall
  /\ \E operation \in Operations(c) :
       call' = [call EXCEPT ![c] = [operation |-> operation, trust |-> Ttl]]
  /\ UNCHANGED <<srv, replica, stamp, pc, trust, fence, known, ordered, losses>>

\* The server executes the call, and the client gets the reply if it still wants it. The reply to
\* a holder may be lost: then the same call is executed again, or never.
Execute(c) ==
  LET operation == call[c].operation
      result == Result(operation, c)
      isGrant == operation = "acquire" /\ result.reply > 0
      isWanted == operation \in {"acquire", "other"} \/ Inside(c)
  IN /\ operation # "none"
     /\ srv' = result.s
     /\ stamp' = IF result.reply = stamp \/ result.s.began = stamp
                 THEN stamp + 1 ELSE stamp
     /\ ordered' = (ordered /\ (isGrant => \A d \in Callers : fence[d] < result.reply))
     /\ \/ /\ call' = [call EXCEPT ![c] = NoCall]
           /\ IF ~isWanted \/ result.reply = 0 THEN UNCHANGED <<pc, trust, fence, known>>
              ELSE /\ known' = [known EXCEPT ![c] = Max(@, result.reply)]
                   /\ IF operation = "other"
                      THEN pc' = [pc EXCEPT ![c] = "idle"] /\ UNCHANGED <<trust, fence>>
                      ELSE /\ pc' = [pc EXCEPT ![c] = "holding"]
                           /\ trust' = [trust EXCEPT ![c] = Max(@, call[c].trust)]
                           /\ fence' = [fence EXCEPT ![c] = result.reply]
        \/ /\ operation \in {"renew", "reassert"}
           /\ UNCHANGED <<call, pc, trust, fence, known>>
     /\ UNCHANGED <<replica, losses>>

Drop(c) ==
  /\ call[c] # NoCall
  /\ call' = [call EXCEPT ![c] = NoCall]
  /\ UNCHANGED <<srv, replica, stamp, pc, trust, fence, known, ordered, losses>>

\* The work ends. A call that is under way may be executed after the release.
Finish(c) ==
  /\ pc[c] = "holding"
  /\ pc' = [pc EXCEPT ![c] = "done"]
  /\ srv' = Release(srv, c)
  /\ UNCHANGED <<replica, stamp, trust, fence, known, call, ordered, losses>>

\* A process that knows nothing uses another lock, after a loss.
FreshProcess ==
  /\ srv.began = 0 /\ losses > 0
  /\ srv' = [Begin(srv, FALSE) EXCEPT !.last = Max(@, stamp)]
  /\ stamp' = stamp + 1
  /\ UNCHANGED <<replica, pc, trust, fence, known, call, ordered, losses>>

Replicate ==
  /\ IsPartial /\ losses < Losses
  /\ replica' = srv
  /\ UNCHANGED <<srv, stamp, pc, trust, fence, known, call, ordered, losses>>

\* A restart without persistence, FLUSHALL, or a failover to an empty replica or one that lags.
Lose ==
  /\ losses < Losses /\ (HasFresh \/ \A c \in Callers : known[c] > 0)
  /\ losses' = losses + 1
  /\ srv' = replica
  /\ UNCHANGED <<replica, stamp, pc, trust, fence, known, call, ordered>>

Older(s) == [s EXCEPT !.expiry = Minus1(@), !.guard = Minus1(@)]

Tick ==
  /\ srv' = Older(srv) /\ replica' = Older(replica)
  /\ trust' = [c \in Callers |-> Minus1(trust[c])]
  /\ call' = [c \in Callers |-> [call[c] EXCEPT !.trust = Minus1(@)]]
  /\ UNCHANGED <<stamp, pc, fence, known, ordered, losses>>

Next ==
  \/ \E c \in Callers : Send(c) \/ Execute(c) \/ Drop(c) \/ Finish(c)
  \/ FreshProcess \/ Replicate \/ Lose \/ Tick

Spec == Init /\ [][Next]_vars

\* Busy replies change only the stamp: without a bound there would be infinitely many states.
Bounded == stamp <= 8

-----------------------------------------------------------------------------
(* What is promised.                                                        *)

\* README, promise 1, over a loss of all data, if every caller of the lock has got a number before.
OneInside == Cardinality({c \in Callers : Inside(c)}) <= 1

\* Promise 2: a grant has a higher fence than all before it, those asserted again included.
FencesIncrease == ordered
=============================================================================
