/* The whole application: known-answer test and measuring protocol. */
#ifndef ANYNPU_APP_H
#define ANYNPU_APP_H

#ifdef __cplusplus
extern "C" {
#endif

int anynpu_self_test(void); /* Runs the known-answer test; 0 if all vectors pass, 1 otherwise. */
int anynpu_app(void);       /* Serves the protocol until the line ends; 0, or 1 if the model does not start. */

#ifdef __cplusplus
}
#endif

#endif
