/* WS-ReliableMessaging 1.0 (2005/02), WS-Addressing 2005/08, SOAP 1.2 and 1.1. */
#import "soap12.h"
#import "wsrm5.h"
#import "contract.h"
